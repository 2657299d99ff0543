// Where queries meet keys and values, between the projections of an attention layer. Behind an interface, because the
// keys that this rank's queries need may lie on several ranks.
#pragma once
#include "tensor/ops/ops.h"

namespace mcpp {

/// Takes this rank's queries, keys and values. options.queries and options.keys say where these stand; they come alike
/// to forward and backward.
class CoreAttention {
 public:
  virtual ~CoreAttention() = default;
  /// The attention of the queries over all keys that they see, wherever those are.
  virtual AttentionResult forward(const QkvHeads& x, const AttentionOptions& options) = 0;
  /// dx, of x's shapes, is overwritten; `y` is what forward returned.
  virtual void backward(const Tensor& dout, const QkvHeads& x, const AttentionResult& y,
                        const AttentionOptions& options, QkvHeads& dx) = 0;
};

/// All keys are on this rank.
class LocalAttention final : public CoreAttention {
 public:
  AttentionResult forward(const QkvHeads& x, const AttentionOptions& options) override;
  void backward(const Tensor& dout, const QkvHeads& x, const AttentionResult& y, const AttentionOptions& options,
                QkvHeads& dx) override;
};

}  // namespace mcpp
