#include "model/layers/mlp.h"

#include <optional>

namespace mcpp {

Activation activation_of(ActivationFunction f) {
  switch (f) {
    case ActivationFunction::Gelu:
      return Activation::Gelu;
    case ActivationFunction::GeluErf:
      return Activation::GeluErf;
    case ActivationFunction::SquaredReLU:
      return Activation::SquaredRelu;
    case ActivationFunction::SwiGLU:
      return Activation::SwiGlu;
    case ActivationFunction::GeGLU:
      return Activation::GeGlu;
    case ActivationFunction::QuickGeGLU:
      return Activation::QuickGeGlu;
  }
  fail(ExitCode::Internal, "unknown activation");
}

ActivationRule activation_rule(const ModelConfig& config) {
  return {activation_of(config.activation_func), config.activation_func_clamp_value, config.glu_linear_offset};
}

namespace {

/// Returns the output axes of the up projection: [ffn] or, if gated, [2, ffn] with gate and up.
Shape up_shape(const ModelConfig& config, i64 ffn) {
  return config.is_gated() ? Shape{2, ffn} : Shape{ffn};
}

/// Returns the boxes of gate and up, or of up alone.
std::vector<Box> up_matrices(const ModelConfig& config, i64 ffn) {
  Shape weight = up_shape(config, ffn);
  weight.push_back(config.hidden_size);
  if (!config.is_gated()) return {slab(weight, 0, 0, weight[0])};
  return {slab(weight, 0, 0, 1), slab(weight, 0, 1, 1)};
}

}  // namespace

Mlp::Mlp(const std::string& name, i64 layer, StoredRef<ModelContext> context, i64 ffn)
    : context_(context),
      activation_(activation_rule(context_.config)),
      linear_fc1_(name + ".linear_fc1", context_.config.hidden_size, up_shape(context_.config, ffn),
                  context_.config.is_gated() ? 1 : 0, context_.tp,
                  {.bias = context_.config.mlp_bias(),
                   .skip_bias_add = true,
                   .init_std = context_.config.init_method_std,
                   .matrices = up_matrices(context_.config, ffn),
                   .sequence_parallel = context_.sequence_parallel,
                   .tp_comm_overlap = context_.tp_comm_overlap,
                   .fp8 = context_.fp8_recipe(name + ".linear_fc1", layer)}),
      linear_fc2_(name + ".linear_fc2", ffn, context_.config.hidden_size, context_.tp,
                  {.bias = context_.config.mlp_bias(),
                   .skip_bias_add = true,
                   .init_std = context_.output_init_std(layer),
                   .sequence_parallel = context_.sequence_parallel,
                   .tp_comm_overlap = context_.tp_comm_overlap,
                   .fp8 = context_.fp8_recipe(name + ".linear_fc2", layer)}) {}

Tensor Mlp::activate(const Tensor& up) const {
  const i64 width = up.dim(-1) / (is_gated(activation_.function) ? 2 : 1);
  Tensor y = Tensor::like(up, {up.dim(0), up.dim(1), width});
  ops::activation(activation_, up, linear_fc1_.bias(), y);
  return y;
}

Tensor Mlp::forward(const Tensor& x, MicrobatchContext& microbatch) {
  Tensor up, activated;
  if (context_.gelu_epilogue) {
    activated = linear_fc1_.forward_gelu(x, microbatch, up);
  } else {
    up = linear_fc1_.forward(x, microbatch);
    activated = activate(up);
  }
  microbatch.save(this, up);
  std::optional<MicrobatchContext::DiscardScope> discard;
  if (context_.recompute.mlp_act)  // never with gelu_epilogue, where `up` includes its bias
    discard.emplace(microbatch, activated, std::vector{up},
                    [this](std::span<const Tensor> saved) { return activate(saved[0]); });
  return linear_fc2_.forward(activated, microbatch);
}

Tensor Mlp::backward(const Tensor& dy, MicrobatchContext& microbatch) {
  if (context_.gelu_epilogue)
    return linear_fc1_.backward(linear_fc2_.backward_gelu(dy, microbatch, [&] { return microbatch.take(this); }),
                                microbatch);
  const Tensor d_activated = linear_fc2_.backward(dy, microbatch);
  Tensor up = microbatch.take(this);
  Tensor d_up = up;  // overwrites its input, which is no longer needed
  ops::activation_backward(activation_, d_activated, up, linear_fc1_.bias(), d_up);
  return linear_fc1_.backward(d_up, microbatch);
}

ActivationPlacement Mlp::output_placement(ActivationPlacement x) const {
  return linear_fc2_.output_placement(linear_fc1_.output_placement(x));
}

void Mlp::visit(const ParamVisitor& f) {
  linear_fc1_.visit(f);
  linear_fc2_.visit(f);
}

}  // namespace mcpp
