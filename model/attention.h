// Causal self-attention: QKV projection, rotary positions, flash attention, output projection.
#pragma once
#include <string>

#include "model/context.h"
#include "parallel/tp/linear.h"
#include "tensor/ops.h"

namespace mcpp {

/// Rotary tables shared by all layers of a model; undefined without RoPE.
struct RotaryTable {
  Tensor cos, sin;  ///< [max_positions, rotary_dim / 2]
  static RotaryTable make(const ModelContext& context);
};

/// x [s, b, h] -> [s, b, h] without the output bias, which the caller adds with the residual. Heads are split over the
/// tensor-parallel group by query groups. Saves, beside what the projections save: qkv [s, b, groups, q + 2, head_dim],
/// the attention's output and its log-sum-exp [b, heads, s].
class SelfAttention final : public Module {
 public:
  SelfAttention(const std::string& name, i64 layer, const ModelContext& context, const RotaryTable& rotary);

  Tensor forward(const Tensor& x, Pass& pass) override;
  Tensor backward(const Tensor& dy, Pass& pass) override;
  void visit(const ParamVisitor& f) override;
  const Tensor* bias() const { return linear_proj_.bias(); }

 private:
  AttentionOptions options(const Pass& pass) const;
  Tensor project_qkv(const Tensor& x, Pass& pass);
  void rotate(PackedHeads& heads, i64 first_position, bool inverse) const;
  Tensor attend_cached(const Tensor& qkv, Pass& pass);

  std::string name_;
  i64 layer_;
  const ModelContext& context_;
  const RotaryTable& rotary_;
  ColumnParallelLinear linear_qkv_;
  RowParallelLinear linear_proj_;
};

}  // namespace mcpp
