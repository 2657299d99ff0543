#include "model/layers/norm.h"

#include <algorithm>

#include "tensor/dtype.h"
#include "tensor/ops/ops.h"

namespace mcpp {
namespace {

NormRule make_rule(const ModelConfig& config) {
  NormRule rule(config.norm_epsilon);
  rule.weight_offset = config.apply_layernorm_1p ? 1 : 0;
  return rule;
}

NormColumns all_columns(const ModelContext& context, i64 width) {
  const Shape shape{width};
  return {.box = slab(shape, 0, 0, shape[0]), .tp = {gradient_spread(context.stream())}};
}

}  // namespace

Norm::Norm(const std::string& name, const ModelContext& context)
    : Norm(name, context, context.config.hidden_size, context.config.norm_epsilon) {}

Norm::Norm(const std::string& name, const ModelContext& context, i64 width, double epsilon)
    : Norm(name, context, all_columns(context, width)) {
  rule_.eps = epsilon;
  is_in_stream_ = true;
}

Norm::Norm(const std::string& name, const ModelContext& context, const NormColumns& columns)
    : is_in_stream_(false),
      rule_(make_rule(context.config)),
      ranks_(columns.ranks && columns.ranks->size() > 1 ? columns.ranks : nullptr),
      weight_(name + ".weight", columns.box, context.config.apply_layernorm_1p ? Init::Zeros : Init::Ones) {
  if (context.config.normalization == Normalization::LayerNorm)
    bias_ = std::make_unique<Param>(name + ".bias", columns.box, Init::Zeros);
  MCPP_CHECK(!ranks_ || !bias_, weight_.name, ": LayerNorm does not support rows sharded across ranks");
  visit([&](Param& param) { param.placement.tp = columns.tp; });
}

/// Returns [T], summed over the columns of all ranks.
Tensor Norm::sum_of_dots(const Tensor& a, const Tensor& b, const Tensor* weight) const {
  Tensor dots = Tensor::empty({a.numel() / a.dim(-1)}, accumulate_dtype(a.dtype()), a.device());
  ops::row_dots(a, b, weight, rule_.weight_offset, dots);
  ranks_->all_reduce(dots, ReduceOp::Sum).wait();
  return dots;
}

Norm::Output Norm::compute(const Tensor& x) const {
  const auto statistic = [&] {
    return Tensor::empty({x.numel() / x.dim(-1)}, accumulate_dtype(x.dtype()), x.device());
  };
  Output out{.y = Tensor::like(x), .mean = {}, .rstd = statistic()};
  if (bias_) {
    out.mean = statistic();
    ops::layer_norm(x, weight_.value, bias_->value, rule_, out.y, out.mean, out.rstd);
  } else {
    NormRule rule = rule_;
    if (ranks_) rule.squares = sum_of_dots(x, x, nullptr), rule.all_columns = ranks_->size() * x.dim(-1);
    ops::rms_norm(x, weight_.value, rule, out.y, out.rstd);
  }
  return out;
}

Tensor Norm::normalize(const Tensor& x) const {
  return compute(x).y;
}

Tensor Norm::forward(const Tensor& x, MicrobatchContext& microbatch) {
  Output out = compute(x);
  microbatch.save(this, x);
  microbatch.save(this, out.rstd);
  if (bias_) microbatch.save(this, out.mean);
  return out.y;
}

void Norm::input_gradient(const Tensor& dy, MicrobatchContext& microbatch, Tensor& dx, bool adds_to_dx) {
  NormForward y{.x = {}, .w = weight_.value, .mean = {}, .rstd = {}, .weight_offset = rule_.weight_offset};
  if (bias_) y.mean = microbatch.take(this);
  y.rstd = microbatch.take(this);
  y.x = microbatch.take(this);
  // Ranks with the same columns have partial gradients dy, so each rank subtracts its part of the mean.
  if (ranks_) y.dots = sum_of_dots(dy, y.x, &weight_.value), y.all_columns = ranks_->size() * dy.dim(-1);
  // One kernel computes the weight and input gradients from dy and x, so a split backward also computes both.
  weight_.add_grad([&](Tensor& dw, float beta_dw) {
    NormGradients gradients{.dx = dx, .add_to_dx = adds_to_dx, .dw = dw, .beta_dw = beta_dw};
    if (!bias_) return ops::rms_norm_backward(dy, y, gradients);
    bias_->add_grad([&](Tensor& db, float beta_db) {
      gradients.db = db, gradients.beta_db = beta_db;
      ops::layer_norm_backward(dy, y, gradients);
    });
  });
}

Tensor Norm::backward(const Tensor& dy, MicrobatchContext& microbatch) {
  Tensor dx = Tensor::like(dy);
  input_gradient(dy, microbatch, dx, false);
  return dx;
}

void Norm::backward_add(const Tensor& dy, MicrobatchContext& microbatch, Tensor& dx) {
  input_gradient(dy, microbatch, dx, true);
}

ActivationPlacement Norm::output_placement(ActivationPlacement x) const {
  const bool has_full_rows = x == ActivationPlacement::Replicated || x == ActivationPlacement::SequenceSharded;
  MCPP_CHECK(is_in_stream_ ? has_full_rows : x == ActivationPlacement::ColumnSharded, weight_.name, " expects ",
             is_in_stream_ ? "full rows" : "columns", ", but receives activations that are ", name_of(x));
  check_gradient_spread(weight_, x);
  if (bias_) check_gradient_spread(*bias_, x);
  return x;
}

void Norm::visit(const ParamVisitor& f) {
  f(weight_);
  if (bias_) f(*bias_);
}

namespace {

/// Returns this rank's columns of the weight for `heads` heads of the full model.
NormColumns head_columns(const ModelContext& context, i64 heads) {
  const i64 dim = context.config.head_dim();
  if (!context.config.qk_layernorm_all_heads)
    return {.box = slab({dim}, 0, 0, dim), .tp = {gradient_spread(ActivationPlacement::ColumnSharded)}};
  const i64 tp = context.tp.size(), ranks_per_group = std::max<i64>(tp / heads, 1),
            first = context.tp.rank() * heads / tp;
  NormColumns columns{
      .box = slab({heads * dim}, 0, first * dim, std::max<i64>(heads / tp, 1) * dim), .tp = {}, .ranks = &context.tp};
  if (ranks_per_group > 1)  // ranks share a query group
    columns.tp = {gradient_spread(ActivationPlacement::ColumnSharded),
                  Holders{.first = static_cast<int>(context.tp.rank() / ranks_per_group * ranks_per_group),
                          .count = static_cast<int>(ranks_per_group)}};
  return columns;
}

/// Copies x to a dense tensor [s, b, heads, head_dim].
Tensor dense_copy(const Heads& x) {
  const Tensor rows = Tensor::like(x.base, {x.seq, x.batch, x.heads, x.head_dim});
  Heads dense = dense_heads(rows, x.heads);
  ops::copy_heads(x, dense);
  return rows;
}

/// Returns weights relative to 1 that leave the last axis of x unchanged.
Tensor no_weights(const Tensor& x) {
  return Tensor::zeros({x.dim(-1)}, x.dtype(), x.device());
}

}  // namespace

HeadNorm::HeadNorm(const std::string& name, StoredRef<ModelContext> context, i64 heads)
    : normalizes_all_heads_(context.get().config.qk_layernorm_all_heads),
      norm_(name, context, head_columns(context, heads)) {}

/// Returns the dense rows that the norm operates on.
Tensor HeadNorm::rows_of(const Heads& x) const {
  const Tensor rows = dense_copy(x);
  return normalizes_all_heads_ ? rows.view({x.seq, x.batch, x.heads * x.head_dim}) : rows;
}

void HeadNorm::forward(Heads x, MicrobatchContext& microbatch) {
  ops::copy_heads(dense_heads(norm_.forward(rows_of(x), microbatch), x.heads), x);
}

void HeadNorm::backward(Heads gradient, MicrobatchContext& microbatch) {
  ops::copy_heads(dense_heads(norm_.backward(rows_of(gradient), microbatch), gradient.heads), gradient);
}

void HeadL2Norm::forward(Heads x, MicrobatchContext& microbatch) {
  const Tensor rows = dense_copy(x);
  NormRule rule(eps_);
  rule.weight_offset = 1;
  Tensor y = Tensor::like(rows),
         rstd = Tensor::empty({rows.numel() / x.head_dim}, accumulate_dtype(rows.dtype()), rows.device());
  ops::rms_norm(rows, no_weights(rows), rule, y, rstd);
  microbatch.save(this, rows);
  microbatch.save(this, rstd);
  ops::copy_heads(dense_heads(y, x.heads), x);
}

void HeadL2Norm::backward(Heads gradient, MicrobatchContext& microbatch) {
  const Tensor dy = dense_copy(gradient), rstd = microbatch.take(this), x = microbatch.take(this);
  NormForward y{.x = x, .w = no_weights(x), .mean = {}, .rstd = rstd, .weight_offset = 1};
  NormGradients gradients{
      .dx = Tensor::like(dy), .add_to_dx = false, .dw = Tensor::empty({gradient.head_dim}, rstd.dtype(), x.device())};
  ops::rms_norm_backward(dy, y, gradients);
  ops::copy_heads(dense_heads(gradients.dx, gradient.heads), gradient);
}

}  // namespace mcpp
