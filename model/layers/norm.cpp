#include "model/layers/norm.h"

#include "tensor/ops/ops.h"
#include "tensor/wide.h"

namespace mcpp {

Norm::Norm(const std::string& name, const ModelContext& context)
    : epsilon_(context.config.norm_epsilon), weight_(name + ".weight", Shape{context.config.hidden_size}, Init::Ones) {
  if (context.config.normalization == Normalization::LayerNorm) {
    bias_ = std::make_unique<Param>(name + ".bias", Shape{context.config.hidden_size}, Init::Zeros);
  }
  visit([&](Param& param) { context.place_in_stream(param); });
}

Norm::Output Norm::compute(const Tensor& x) const {
  const auto statistic = [&] { return Tensor::empty({x.numel() / x.dim(-1)}, wide(x.dtype()), x.device()); };
  Output out{.y = Tensor::like(x), .mean = {}, .rstd = statistic()};
  if (bias_) {
    out.mean = statistic();
    ops::layer_norm(x, weight_.value, bias_->value, epsilon_, out.y, out.mean, out.rstd);
  } else {
    ops::rms_norm(x, weight_.value, epsilon_, out.y, out.rstd);
  }
  return out;
}

Tensor Norm::normalize(const Tensor& x) const {
  return compute(x).y;
}

Tensor Norm::forward(const Tensor& x, Pass& pass) {
  Output out = compute(x);
  pass.save(this, x);
  pass.save(this, out.rstd);
  if (bias_) pass.save(this, out.mean);
  return out.y;
}

void Norm::input_gradient(const Tensor& dy, Pass& pass, Tensor& dx, bool add) {
  NormForward y{.x = {}, .w = weight_.value, .mean = {}, .rstd = {}};
  if (bias_) y.mean = pass.take(this);
  y.rstd = pass.take(this);
  y.x = pass.take(this);
  // Weight and input gradient come from one sweep over dy and x, so a split backward does both here.
  weight_.add_grad([&](Tensor& dw, float beta_dw) {
    NormGradients gradients{.dx = dx, .add_to_dx = add, .dw = dw, .beta_dw = beta_dw};
    if (!bias_) return ops::rms_norm_backward(dy, y, gradients);
    bias_->add_grad([&](Tensor& db, float beta_db) {
      gradients.db = db, gradients.beta_db = beta_db;
      ops::layer_norm_backward(dy, y, gradients);
    });
  });
}

Tensor Norm::backward(const Tensor& dy, Pass& pass) {
  Tensor dx = Tensor::like(dy);
  input_gradient(dy, pass, dx, false);
  return dx;
}

void Norm::backward_add(const Tensor& dy, Pass& pass, Tensor& dx) {
  input_gradient(dy, pass, dx, true);
}

ActivationPlacement Norm::gives(ActivationPlacement x) const {
  MCPP_CHECK(x == ActivationPlacement::Whole || x == ActivationPlacement::Sequence, weight_.name,
             " takes whole rows, and is given some that are ", name_of(x));
  check_gradient_spread(weight_, x);
  if (bias_) check_gradient_spread(*bias_, x);
  return x;
}

void Norm::visit(const ParamVisitor& f) {
  f(weight_);
  if (bias_) f(*bias_);
}

}  // namespace mcpp
