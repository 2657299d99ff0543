#include "model/layers/recurrent_mixer.h"

#include <cmath>
#include <optional>

#include "model/layers/kv_cache.h"
#include "tensor/dtype.h"

namespace mcpp {
namespace {

ScanShape shape_of_rank(ScanShape shape, const ModelContext& context) {
  const i64 ranks = context.tp.size() * context.cp.size();
  MCPP_CHECK(shape.groups % ranks == 0, shape.groups, " groups of heads do not divide among ", ranks,
             " tensor and context-parallel ranks");
  shape.groups /= ranks;
  return shape;
}

double norm_epsilon(const RecurrentSpec& spec, const ModelConfig& config) {
  const double own = config.recurrent.linear_norm_epsilon;
  return !spec.is_mamba() && own > 0 ? own : config.norm_epsilon;
}

}  // namespace

RecurrentMixer::RecurrentMixer(const std::string& name, i64 layer, const RecurrentSpec& spec,
                               StoredRef<ModelContext> context)
    : layer_(layer),
      spec_(spec),
      context_(context),
      exchange_(context_.cp),
      shape_(shape_of_rank(spec.shape, context_)),
      norm_epsilon_(norm_epsilon(spec, context_.config)),
      in_proj_(name, layer, spec, context_),
      conv_weight_(name + ".conv1d.weight",
                   split_box({spec.shape.groups, spec.shape.conv_width(), spec.conv_taps}, 0, context_.tp),
                   Init::Normal, 1 / std::sqrt(3 * static_cast<double>(spec.conv_taps))),
      a_log_(name + ".A_log", split_box({spec.shape.heads()}, 0, context_.tp), Init::DecayRate),
      dt_bias_(name + ".dt_bias", split_box({spec.shape.decays()}, 0, context_.tp), Init::TimeStep),
      norm_weight_(name + ".norm.weight",
                   spec.is_mamba() ? split_box({spec.shape.heads() * spec.shape.value_dim}, 0, context_.tp)
                                   : slab({spec.shape.value_dim}, 0, 0, spec.shape.value_dim),
                   Init::Ones),
      out_proj_(name + ".out_proj", spec.shape.heads() * spec.shape.value_dim, context_.config.hidden_size, context_.tp,
                {.bias = false,
                 .skip_bias_add = true,
                 .init_std = context_.output_init_std(layer),
                 .sequence_parallel = context_.sequence_parallel,
                 .tp_comm_overlap = context_.tp_comm_overlap,
                 .fp8 = context_.fp8_recipe(name + ".out_proj", layer)}) {
  if (!spec.is_mamba()) {
    norm_weight_.placement.tp = {gradient_spread(ActivationPlacement::ColumnSharded)};
    return;
  }
  conv_bias_ = std::make_unique<Param>(
      name + ".conv1d.bias", split_box({spec.shape.groups, spec.shape.conv_width()}, 0, context_.tp), Init::Zeros);
  skip_ = std::make_unique<Param>(name + ".D", split_box({spec.shape.heads()}, 0, context_.tp), Init::Ones);
}

Tensor RecurrentMixer::own_part(const Tensor& values) const {
  if (context_.cp.size() == 1) return values;
  const i64 size = values.dim(0) / context_.cp.size(), first = exchange_.part() * size;
  return values.slice(first, first + size);
}

template <class F>
void RecurrentMixer::add_grad(Param& param, const F& f) {
  param.add_grad([&](Tensor& sum, float beta) {
    Tensor part = own_part(sum);
    if (part.numel() < sum.numel() && beta == 0) ops::fill_zero(sum);
    f(part, beta);
  });
}

ConvParams RecurrentMixer::conv_params() const {
  return {own_part(conv_weight_.value), conv_bias_ ? own_part(conv_bias_->value) : Tensor()};
}

ScanParams RecurrentMixer::scan_params() const {
  return {own_part(a_log_.value), own_part(dt_bias_.value), skip_ ? own_part(skip_->value) : Tensor()};
}

ScanPositions RecurrentMixer::positions(const MicrobatchContext& microbatch) const {
  if (context_.cp.size() > 1) return {.first = 0, .starts = microbatch.sequence_starts};
  return {.first = microbatch.positions.first, .starts = microbatch.attention_starts};
}

Tensor RecurrentMixer::convolve(const Tensor& p, const ScanPositions& positions, Tensor* state) const {
  Tensor x = Tensor::like(p, {p.dim(0), p.dim(1), shape_.groups * shape_.conv_width()});
  ops::short_conv(shape_, p, conv_params(), positions, state, x);
  return x;
}

Tensor RecurrentMixer::scan(const Tensor& p, const ScanPositions& positions, MicrobatchContext* cached) const {
  KvCache::RecurrentState* state =
      cached ? &cached->kv_cache->recurrent_state(layer_, shape_, spec_.conv_taps) : nullptr;
  const Tensor x = convolve(p, positions, state ? &state->conv : nullptr);
  Tensor y = Tensor::like(p, {p.dim(0), p.dim(1), shape_.heads() * shape_.value_dim});
  ops::gated_scan(shape_, x, p, scan_params(), positions, state ? &state->scan : nullptr, y);
  return y;
}

Tensor RecurrentMixer::forward(const Tensor& x, MicrobatchContext& microbatch) {
  const Tensor p = exchange_.to_sequence(in_proj_.forward(x, microbatch), microbatch.partition.get());
  const ScanPositions at = positions(microbatch);
  const Tensor y = scan(p, at, microbatch.kv_cache ? &microbatch : nullptr);
  std::optional<MicrobatchContext::DiscardScope> discard;
  if (context_.recompute.core_attn)
    discard.emplace(microbatch, y, std::vector{p},
                    [this, at](std::span<const Tensor> saved) { return scan(saved[0], at, nullptr); });
  microbatch.save(this, p);
  microbatch.save(this, y);
  Tensor out = Tensor::like(y);
  const Tensor norm_weight = spec_.is_mamba() ? own_part(norm_weight_.value) : norm_weight_.value;
  ops::gated_norm(shape_, y, p, norm_weight, norm_epsilon_, out);
  return out_proj_.forward(exchange_.to_positions(out, microbatch.partition.get()), microbatch);
}

Tensor RecurrentMixer::norm_backward(const Tensor& d_out, const Tensor& y, const Tensor& p, Tensor& dp) {
  Tensor dy = d_out;
  const Tensor weight = spec_.is_mamba() ? own_part(norm_weight_.value) : norm_weight_.value;
  Tensor dw = Tensor::empty({ceil_div(p.dim(0) * p.dim(1), ops::kGatedNormRows), weight.numel()},
                            accumulate_dtype(p.dtype()), p.device(), MemoryClass::Workspace);
  ops::gated_norm_backward(shape_, d_out, y, p, weight, norm_epsilon_, dy, dp, dw);
  if (spec_.is_mamba())
    add_grad(norm_weight_, [&](Tensor& sum, float beta) { ops::column_sum(dw, sum, beta); });
  else
    norm_weight_.add_grad([&](Tensor& sum, float beta) { ops::column_sum(dw, sum, beta); });
  return dy;
}

void RecurrentMixer::scan_backward(const Tensor& dy, const Tensor& p, const ScanPositions& positions, Tensor& dp) {
  const Tensor x = convolve(p, positions, nullptr);
  Tensor dx = Tensor::like(x);
  const auto per_sample = [&](i64 count) {
    return Tensor::empty({p.dim(1), count}, accumulate_dtype(p.dtype()), p.device(), MemoryClass::Workspace);
  };
  ScanParamGradients gradients{per_sample(shape_.heads()), per_sample(shape_.decays()),
                               skip_ ? per_sample(shape_.heads()) : Tensor()};
  ops::gated_scan_backward(shape_, dy, x, p, scan_params(), positions, dx, dp, gradients);
  const auto add = [&](Param& param, const Tensor& terms) {
    add_grad(param, [&](Tensor& sum, float beta) { ops::column_sum(terms, sum, beta); });
  };
  add(a_log_, gradients.a_log);
  add(dt_bias_, gradients.dt_bias);
  if (skip_) add(*skip_, gradients.skip);

  Tensor d_bias = conv_bias_ ? Tensor::empty({shape_.groups, shape_.conv_width()}, accumulate_dtype(p.dtype()),
                                             p.device(), MemoryClass::Workspace)
                             : Tensor();
  add_grad(conv_weight_, [&](Tensor& sum, float beta) {
    if (d_bias.defined()) ops::fill_zero(d_bias);
    ops::short_conv_backward(shape_, p, conv_params(), positions, dx, dp, sum, d_bias.defined() ? &d_bias : nullptr,
                             beta);
  });
  if (!conv_bias_) return;
  const Tensor row = d_bias.view({1, -1});
  add_grad(*conv_bias_, [&](Tensor& sum, float beta) {
    Tensor flat = sum.view({-1});
    ops::column_sum(row, flat, beta);
  });
}

Tensor RecurrentMixer::backward(const Tensor& dy, MicrobatchContext& microbatch) {
  const Tensor d_out = exchange_.to_sequence(out_proj_.backward(dy, microbatch), microbatch.partition.get());
  const Tensor y = microbatch.take(this), p = microbatch.take(this);
  Tensor dp = Tensor::like(p);
  const Tensor d_scan = norm_backward(d_out, y, p, dp);
  scan_backward(d_scan, p, positions(microbatch), dp);
  return in_proj_.backward(exchange_.to_positions(dp, microbatch.partition.get()), microbatch);
}

ActivationPlacement RecurrentMixer::output_placement(ActivationPlacement x) const {
  const ActivationPlacement heads = in_proj_.output_placement(x);
  if (!spec_.is_mamba()) check_gradient_spread(norm_weight_, heads);
  return out_proj_.output_placement(heads);
}

void RecurrentMixer::visit(const ParamVisitor& f) {
  in_proj_.visit(f);
  f(conv_weight_);
  if (conv_bias_) f(*conv_bias_);
  f(a_log_);
  f(dt_bias_);
  if (skip_) f(*skip_);
  f(norm_weight_);
  out_proj_.visit(f);
}

}  // namespace mcpp
