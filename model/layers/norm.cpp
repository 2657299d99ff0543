#include "model/layers/norm.h"

#include "tensor/ops/ops.h"
#include "tensor/wide.h"

namespace mcpp {

Norm::Norm(const std::string& name, const ModelContext& context)
    : Norm(name, context, context.config.hidden_size, context.stream()) {}

Norm::Norm(const std::string& name, const ModelContext& context, i64 width, ActivationPlacement place)
    : place_(place), epsilon_(context.config.norm_epsilon), weight_(name + ".weight", Shape{width}, Init::Ones) {
  if (context.config.normalization == Normalization::LayerNorm)
    bias_ = std::make_unique<Param>(name + ".bias", Shape{width}, Init::Zeros);
  visit([&](Param& param) { param.placement.tp = {gradient_spread(place)}; });
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
  const bool is_of_heads = place_ == ActivationPlacement::Columns;
  const bool is_whole = x == ActivationPlacement::Whole || x == ActivationPlacement::Sequence;
  MCPP_CHECK(is_of_heads ? x == place_ : is_whole, weight_.name, is_of_heads ? " takes heads" : " takes whole rows",
             ", and is given some that are ", name_of(x));
  check_gradient_spread(weight_, x);
  if (bias_) check_gradient_spread(*bias_, x);
  return x;
}

void Norm::visit(const ParamVisitor& f) {
  f(weight_);
  if (bias_) f(*bias_);
}

HeadNorm::HeadNorm(const std::string& name, KeptRef<ModelContext> context, i64 heads)
    : takes_all_heads_(context.get().config.qk_layernorm_all_heads),
      norm_(name, context, (takes_all_heads_ ? heads : 1) * context.get().config.head_dim(),
            ActivationPlacement::Columns) {
  MCPP_CHECK(!takes_all_heads_ || context.get().tp.size() == 1, name, " of heads that are on several ranks");
}

/// What the norm works on, of its own.
Tensor HeadNorm::rows_of(const Heads& x) const {
  const Tensor rows = Tensor::like(x.base, {x.seq, x.batch, x.heads * x.head_dim});
  Heads dense = dense_heads(rows, x.heads);
  ops::copy_heads(x, dense);
  return takes_all_heads_ ? rows : rows.view({x.seq, x.batch, x.heads, x.head_dim});
}

void HeadNorm::forward(Heads x, Pass& pass) {
  ops::copy_heads(dense_heads(norm_.forward(rows_of(x), pass), x.heads), x);
}

void HeadNorm::backward(Heads gradient, Pass& pass) {
  ops::copy_heads(dense_heads(norm_.backward(rows_of(gradient), pass), gradient.heads), gradient);
}

}  // namespace mcpp
