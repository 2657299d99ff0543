// Weighted average of the weights of several checkpoints, whose layouts may differ.
#pragma once
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/format/shard.h"
#include "checkpoint/load/reader.h"

namespace mcpp {

/// Checkpoint in an average.
struct AverageTerm {
  CheckpointReader* reader = nullptr;
  double coefficient = 0;
};

/// Returns the coefficients 1 / count of a mean.
std::vector<double> uniform_coefficients(std::size_t count);
/// Returns the coefficients of the last of `count` values of an exponential moving average that begins with the first
/// value: average = decay average + (1 - decay) value.
std::vector<double> ema_coefficients(std::size_t count, double decay);

/// Source of the averaged weights ("model/..."), in the types of the first checkpoint and in pieces. The memory depends
/// neither on the size of the model nor on the number of checkpoints.
class AveragedWeights final : public ShardSource {
 public:
  /// `sum_dtype` is the type of the sums: F32 or F64. `master_state` names the optimizer state with weights of higher
  /// precision, which is summed in place of a weight if all checkpoints have it. Throws BadInput, naming the checkpoint
  /// and the tensor, unless all checkpoints have the same weights with the same shapes and types. The readers must
  /// outlive the source.
  AveragedWeights(std::vector<AverageTerm> terms, DType sum_dtype, std::string_view master_state);

  std::span<const ShardSpec> shards() const override { return specs_; }
  /// Throws BadInput if a value in a checkpoint is NaN or infinite, or if a file is damaged.
  Tensor data(std::size_t index) override;

 private:
  void check_same_weights() const;
  /// Returns the tensor to sum for a weight.
  std::string source_of(const std::string& weight, std::string_view master_state) const;

  std::vector<AverageTerm> terms_;
  DType sum_dtype_;
  CpuDevice host_;
  std::vector<ShardSpec> specs_;
  std::vector<std::string> sources_;  // by shard: the tensor to sum
};

}  // namespace mcpp
