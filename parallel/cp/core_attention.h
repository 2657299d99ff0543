// Where queries meet keys and values, between the projections of an attention layer. Behind an interface, because the
// keys that this rank's queries need may lie on several ranks.
#pragma once
#include <memory>

#include "parallel/cp/sequence_cut.h"
#include "tensor/ops/ops.h"

namespace mcpp {

/// options.queries and options.keys say where this rank's queries and keys stand.
struct CoreAttentionOptions : AttentionOptions {
  std::shared_ptr<const SampleCut> cut;  ///< where those of others do; null where there are no others
};

/// Takes this rank's queries, keys and values. Options come alike to forward and backward.
class CoreAttention {
 public:
  virtual ~CoreAttention() = default;
  /// The attention of the queries over all keys that they see, wherever those are.
  virtual AttentionResult forward(const QkvHeads& x, const CoreAttentionOptions& options) = 0;
  /// dx, of x's shapes, is overwritten; `y` is what forward returned.
  virtual void backward(const Tensor& dout, const QkvHeads& x, const AttentionResult& y,
                        const CoreAttentionOptions& options, QkvHeads& dx) = 0;
};

/// All keys are on this rank.
class LocalAttention final : public CoreAttention {
 public:
  AttentionResult forward(const QkvHeads& x, const CoreAttentionOptions& options) override;
  void backward(const Tensor& dout, const QkvHeads& x, const AttentionResult& y, const CoreAttentionOptions& options,
                QkvHeads& dx) override;
};

}  // namespace mcpp
