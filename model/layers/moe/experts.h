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
#include "tensor/ops/low_precision/row_codes.h"

namespace mcpp {

/// Maps x [M, h] to [M, h], where x has rows[e] rows for expert e in the order of experts, and h is the latent width if
/// the experts have one, otherwise hidden_size. If the width of an expert is sharded, the result is a partial sum.
/// Parameters are boxes of these global tensors:
/// - linear_fc1.weight [num_experts, ffn, h] (gated: [num_experts, 2, ffn, h]);
/// - linear_fc2.weight [num_experts, h, ffn];
/// - if MLPs have biases, linear_fc1.bias [num_experts, ffn] (gated: [num_experts, 2, ffn]) and linear_fc2.bias
///   [num_experts, h]. Of the ranks that share an expert's width, only the first adds the latter.
/// A recipe with blocks rounds the operands of forward and of the input gradient. Weight gradients are in the model's
/// dtype: their blocks of tokens would depend on which ranks exchange tokens.
/// With Fp8Layers::moe_fp8_dispatch, x and the gradient of the result are passed in the encoding in which they are
/// multiplied, and weight gradients are computed from the decoded rows.
/// Saves x, the up projection [M, ffn] (gated: [M, 2 ffn]) including bias, and the output of the activation [M, ffn].
class Experts {
 public:
  Experts(const std::string& name, i64 layer, const MoeSpec& spec, StoredRef<ModelContext> context);

  Tensor forward(const Tensor& x, std::span<const i64> rows, MicrobatchContext& microbatch);
  /// Returns the gradient of x.
  Tensor backward(const Tensor& dy, std::span<const i64> rows, MicrobatchContext& microbatch);
  void visit(const ParamVisitor& f);
  /// Return the encodings of the arguments of forward() and backward(); undefined: the model's dtype.
  RowEncoding token_encoding() const;
  RowEncoding gradient_encoding() const;

 private:
  /// One of the two linear maps of all experts.
  struct Linear {
    Param weight;
    std::unique_ptr<Param> bias;  // nullptr without bias
    PassRecipes recipe;
  };
  Linear make_linear(const std::string& name, const Shape& shape, std::size_t ffn_axis, double init_std) const;
  Tensor activate(const Tensor& up) const;
  /// Returns the width of an expert's input and output.
  i64 width() const { return fc1_.weight.box.shape.back(); }
  void add_weight_gradient(Linear& linear, const Tensor& dy, const Tensor& x, std::span<const i64> rows,
                           MicrobatchContext& microbatch);

  const ModelContext& context_;
  ActivationRule activation_;
  Linear fc1_, fc2_;
};

/// Returns x [T, h] after multiplying row t by weights[t]. `weights` is fp32 (fp64) [T, 1].
Tensor scale_rows(const Tensor& x, const Tensor& weights);
/// Computes dx and d_weights from dy, the gradient of the result of scale_rows(). Overwrites both.
void scale_rows_backward(const Tensor& dy, const Tensor& x, const Tensor& weights, Tensor& dx, Tensor& d_weights);

// Shared expert, which processes every token (Dai et al., "DeepSeekMoE", 2024), with a gate if the model has one
// (Qwen2-MoE).

/// Maps x to y, both [s, b, h], like Mlp but including the output bias. A gate multiplies the output of each token by
/// sigmoid(x . gate). With a gate, saves x, the gate logits [T, 1] and the output of the MLP.
class SharedExpert final : public Module {
 public:
  /// `layer` is the global index, starting at 0, and `ffn` the width inside the expert.
  SharedExpert(const std::string& name, i64 layer, i64 ffn, StoredRef<ModelContext> context);

  Tensor forward(const Tensor& x, MicrobatchContext& microbatch) override;
  Tensor backward(const Tensor& dy, MicrobatchContext& microbatch) override;
  ActivationPlacement output_placement(ActivationPlacement x) const override;
  void visit(const ParamVisitor& f) override;

 private:
  Mlp mlp_;
  std::unique_ptr<Fp32Linear> gate_;  // has one output; nullptr without a gate
};

}  // namespace mcpp
