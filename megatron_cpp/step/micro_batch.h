// Tokens of a microbatch on one rank.
#pragma once
#include <memory>
#include <vector>

#include "model/gpt_model.h"
#include "tensor/tensor.h"

namespace mcpp {

/// Samples of one forward and backward pass. Tensors are sequence first, and s counts the positions of this rank.
struct MicroBatch {
  Tensor tokens;             ///< int32 [s, b]; on the first pipeline stage
  Tensor targets;            ///< int32 [s, b], -1 = ignored; on the last stage
  std::vector<i64> samples;  ///< [b] global sample indices
  /// Tokens and targets of each layer of multi-token prediction. Set on the stages with the final norm and with the
  /// output.
  std::vector<FutureTokens> future = {};
  /// Document starts as in MicrobatchContext, int32 [s, b]. Set on every stage if document boundaries are used.
  /// attention_starts has the rows that attention processes after an exchange of heads.
  Tensor attention_starts = {}, position_starts = {};
  Tensor sequence_starts = {};  ///< attention_starts of all positions; only with context parallelism
  /// Partition of the samples over context-parallel ranks; nullptr without context parallelism.
  std::shared_ptr<const SamplePartition> partition = nullptr;
};
/// Returns this context-parallel rank's shard of a microbatch of unsharded samples, balanced by the cost of attention.
/// On stages that read no data, the shard has only sample indices.
MicroBatch shard_microbatch(const MicroBatch& batch, const ModelConfig& config, const ContextParallel& cp);

}  // namespace mcpp
