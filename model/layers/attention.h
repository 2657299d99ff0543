// Causal self-attention: QKV projection, rotary positions, core attention, output projection.
#pragma once
#include <memory>
#include <string>

#include "base/kept_ref.h"
#include "model/config/context.h"
#include "model/layers/branch.h"
#include "model/layers/qkv_projection.h"
#include "parallel/cp/context_attention.h"
#include "parallel/tp/linear.h"

namespace mcpp {

/// The table of rotary positions, shared by all layers of a model, which it outlives. It takes memory from its first
/// use on, so that a model which is only looked at needs none.
class RotaryTable {
 public:
  explicit RotaryTable(KeptRef<ModelContext> context) : context_(context) {}

  /// Rotates the heads of x, in place, to where its tokens stand, or back; nothing without RoPE.
  void rotate(Heads& x, const Positions& positions, bool inverse);

 private:
  void make();

  const ModelContext& context_;
  Tensor cos_, sin_;  // [max_positions, rotary_dim / 2]
};

/// x [s, b, h] -> [s, b, h] (sequence parallel: [s / tp, b, h] -> [s / tp, b, h]) without the output bias, which the
/// caller adds with the residual. Heads are split over the tensor-parallel group; with context parallelism s are this
/// rank's positions. Saves, beside what the projections save: queries, keys and values, the attention's output and its
/// log-sum-exp [b, heads / tp, s], all as they are once heads are exchanged.
class SelfAttention final : public Branch {
 public:
  SelfAttention(const std::string& name, i64 layer, KeptRef<ModelContext> context, RotaryTable& rotary);

  Tensor forward(const Tensor& x, Pass& pass) override;
  Tensor backward(const Tensor& dy, Pass& pass) override;
  ActivationPlacement gives(ActivationPlacement x) const override;
  void visit(const ParamVisitor& f) override;
  const Tensor* bias() const override { return linear_proj_.bias(); }

 private:
  AttentionOptions options(const Pass& pass) const;
  void rotate(QkvHeads heads, const Pass& pass, bool inverse) const;
  Tensor attend_cached(const QkvHeads& heads, Pass& pass);
  void save(const ContextAttention::Kept& kept, Pass& pass) const;
  ContextAttention::Kept take(Pass& pass) const;

  std::string name_;
  i64 layer_;
  const ModelContext& context_;
  RotaryTable& rotary_;
  QkvProjection linear_qkv_;
  ContextAttention core_attention_;
  RowParallelLinear linear_proj_;
};

}  // namespace mcpp
