// Core attention, between the projections of an attention layer. It is an interface because the keys that this rank's
// queries need may be on several ranks.
#pragma once
#include <memory>

#include "parallel/cp/sequence_partition.h"
#include "tensor/ops/ops.h"

namespace mcpp {

/// Options of core attention; options.queries and options.keys are the positions of this rank's queries and keys.
struct CoreAttentionOptions : AttentionOptions {
  std::shared_ptr<const SamplePartition> partition;  ///< positions of all ranks; null without context parallelism
};

/// Attention of this rank's queries. Forward and backward must get the same options.
class CoreAttention {
 public:
  virtual ~CoreAttention() = default;
  /// Returns the attention of the queries over all visible keys, on whichever rank they are.
  virtual AttentionResult forward(const QkvHeads& x, const CoreAttentionOptions& options) = 0;
  /// Overwrites dx, shaped like x. `y` is the result of forward.
  virtual void backward(const Tensor& dout, const QkvHeads& x, const AttentionResult& y,
                        const CoreAttentionOptions& options, QkvHeads& dx) = 0;
};

/// Attention with all keys on this rank.
class LocalAttention final : public CoreAttention {
 public:
  AttentionResult forward(const QkvHeads& x, const CoreAttentionOptions& options) override;
  void backward(const Tensor& dout, const QkvHeads& x, const AttentionResult& y, const CoreAttentionOptions& options,
                QkvHeads& dx) override;
};

}  // namespace mcpp
