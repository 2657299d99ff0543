// Experts of a layer on one rank: MLPs of the same shape, each applied to its own rows.
#pragma once
#include <memory>
#include <span>
#include <string>

#include "base/stored_ref.h"
#include "model/config/block_spec.h"
#include "model/config/context.h"
#include "model/layers/fp32_linear.h"
#include "model/layers/mlp.h"
#include "nn/module.h"

namespace mcpp {

/// x [M, h], with rows[e] rows for expert e in the order of experts -> [M, h], where h is the width of the latent if
/// the experts have one, otherwise hidden_size; a partial sum if the width of an expert is sharded. The matrices are
/// boxes of two global tensors, linear_fc1.weight [num_experts, ffn, h] (gated: [num_experts, 2, ffn, h]) and
/// linear_fc2.weight [num_experts, h, ffn]; if MLPs have biases, also of linear_fc1.bias [num_experts, ffn] (gated:
/// [num_experts, 2, ffn]) and linear_fc2.bias [num_experts, h], which the first of the ranks that share an expert's
/// width adds to its partial sum. Saves x, the up projection [M, ffn] (gated: [M, 2 ffn]) including bias, and the
/// activation's output [M, ffn].
class Experts {
 public:
  Experts(const std::string& name, const MoeSpec& spec, StoredRef<ModelContext> context);

  Tensor forward(const Tensor& x, std::span<const i64> rows, MicrobatchContext& microbatch);
  /// Returns dx.
  Tensor backward(const Tensor& dy, std::span<const i64> rows, MicrobatchContext& microbatch);
  void visit(const ParamVisitor& f);

 private:
  /// One of the two linear maps of all experts.
  struct Linear {
    Param weight;
    std::unique_ptr<Param> bias;  // null without bias
  };
  Linear make_linear(const std::string& name, const Shape& shape, std::size_t ffn_axis, double init_std) const;
  Tensor activate(const Tensor& up) const;
  void add_weight_gradient(Linear& linear, const Tensor& dy, const Tensor& x, std::span<const i64> rows,
                           MicrobatchContext& microbatch);

  const ModelContext& context_;
  ActivationRule activation_;
  Linear fc1_, fc2_;
};

/// Returns x [T, h] with row t multiplied by weights[t], fp32 (fp64) [T, 1].
Tensor scale_rows(const Tensor& x, const Tensor& weights);
/// Overwrites dx and d_weights, given the gradient of the result of scale_rows().
void scale_rows_backward(const Tensor& dy, const Tensor& x, const Tensor& weights, Tensor& dx, Tensor& d_weights);

// Shared expert, which processes every token (Dai et al., "DeepSeekMoE", 2024), with a gate if the model has one
// (Qwen2-MoE).

/// x [s, b, h] -> [s, b, h], as Mlp including its bias. A gate multiplies each token's output by sigmoid(x . gate).
/// With a gate, saves x, the gate's logits [T, 1] and the value that it is applied to.
class SharedExpert final : public Module {
 public:
  /// `layer`: global index, starting at 0. `ffn`: width inside of the expert.
  SharedExpert(const std::string& name, i64 layer, i64 ffn, StoredRef<ModelContext> context);

  Tensor forward(const Tensor& x, MicrobatchContext& microbatch) override;
  Tensor backward(const Tensor& dy, MicrobatchContext& microbatch) override;
  ActivationPlacement output_placement(ActivationPlacement x) const override;
  void visit(const ParamVisitor& f) override;

 private:
  Mlp mlp_;
  std::unique_ptr<Fp32Linear> gate_;  // one output; null without a gate
};

}  // namespace mcpp
