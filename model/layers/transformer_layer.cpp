#include "model/layers/transformer_layer.h"

#include <optional>
#include <utility>

#include "tensor/processor.h"

namespace mcpp {
namespace {

ActivationPlacement residual_gives(ActivationPlacement x, const Norm& norm, const Branch& branch,
                                   const std::string& site) {
  const ActivationPlacement y = branch.gives(norm.gives(x));
  MCPP_CHECK(y == x, site, " adds activations that are ", name_of(y), " to a residual that is ", name_of(x));
  return y;
}

}  // namespace

TransformerLayer::TransformerLayer(i64 layer, KeptRef<ModelContext> context, RotaryTable& rotary)
    : name_(str("decoder.layers.", layer)),
      context_(context),
      input_layernorm_(name_ + ".input_layernorm", context),
      self_attention_(name_ + ".self_attention", layer, context, rotary),
      pre_mlp_layernorm_(name_ + ".pre_mlp_layernorm", context) {
  const std::string mlp = name_ + ".mlp";
  if (context_.config.moe.has_experts(layer)) {
    auto experts = std::make_unique<MoELayer>(mlp, context);
    router_ = &experts->router();
    mlp_ = std::move(experts);
  } else {
    mlp_ = std::make_unique<Mlp>(mlp, context, context_.config.ffn());
  }
}

Dropout TransformerLayer::residual_dropout(const Tensor& x, const std::string& site, const Pass& pass) const {
  return context_.dropout_for(context_.config.hidden_dropout, site, context_.positions(x, pass).ranges, pass);
}

Tensor TransformerLayer::residual_forward(const Tensor& x, Norm& norm, Branch& branch, const std::string& site,
                                          Pass& pass) {
  const ProfileRange range(context_.device, context_.profiler, site.c_str());
  const Tensor normalized = norm.forward(x, pass);
  std::optional<Pass::DiscardScope> discard;
  if (context_.recompute.layernorm) discard.emplace(pass, normalized, [&norm, x] { return norm.normalize(x); });
  Tensor y = branch.forward(normalized, pass);
  ops::bias_dropout_add(y, branch.bias(), x, residual_dropout(x, site, pass), y);
  return y;
}

Tensor TransformerLayer::residual_backward(const Tensor& dy, Norm& norm, Branch& branch, const std::string& site,
                                           Pass& pass) {
  const ProfileRange range(context_.device, context_.profiler, site.c_str());
  const Dropout dropout = residual_dropout(dy, site, pass);
  Tensor d_branch = dy, dx = dy;
  if (dropout.p > 0) {
    d_branch = Tensor::like(dy);
    ops::dropout(dy, dropout, d_branch);
  } else if (pass.defers_weights) {  // a deferred weight gradient still reads dy
    dx = Tensor::like(dy);
    ops::copy(dy, dx);
  }
  norm.backward_add(branch.backward(d_branch, pass), pass, dx);
  return dx;
}

Tensor TransformerLayer::forward(const Tensor& x, Pass& pass) {
  const Tensor x1 = residual_forward(x, input_layernorm_, self_attention_, name_ + ".self_attention", pass);
  return residual_forward(x1, pre_mlp_layernorm_, *mlp_, name_ + ".mlp", pass);
}

Tensor TransformerLayer::backward(const Tensor& dy, Pass& pass) {
  const Tensor dx1 = residual_backward(dy, pre_mlp_layernorm_, *mlp_, name_ + ".mlp", pass);
  return residual_backward(dx1, input_layernorm_, self_attention_, name_ + ".self_attention", pass);
}

ActivationPlacement TransformerLayer::gives(ActivationPlacement x) const {
  const ActivationPlacement x1 = residual_gives(x, input_layernorm_, self_attention_, name_ + ".self_attention");
  return residual_gives(x1, pre_mlp_layernorm_, *mlp_, name_ + ".mlp");
}

void TransformerLayer::visit(const ParamVisitor& f) {
  input_layernorm_.visit(f);
  self_attention_.visit(f);
  pre_mlp_layernorm_.visit(f);
  mlp_->visit(f);
}

}  // namespace mcpp
