// Sources of the tensors of an existing checkpoint, for writing them to another one.
#pragma once
#include <span>
#include <vector>

#include "checkpoint/format/shard.h"
#include "checkpoint/load/reader.h"

namespace mcpp {

/// Max elements of the pieces in which commands copy tensors. The memory that a command needs does not depend on the
/// size of the model.
inline constexpr i64 kCopiedPiece = i64{1} << 22;

/// Returns pieces that together cover a tensor.
std::vector<ShardSpec> pieces_of(const TensorEntry& tensor);

/// Source of all tensors of a checkpoint, in pieces. The reader must outlive it.
class CopiedTensors final : public ShardSource {
 public:
  explicit CopiedTensors(CheckpointReader& reader);

  std::span<const ShardSpec> shards() const override { return specs_; }
  /// Throws BadInput if a file is damaged.
  Tensor data(std::size_t index) override;

 private:
  CheckpointReader& reader_;
  CpuDevice host_;
  std::vector<ShardSpec> specs_;
};

}  // namespace mcpp
