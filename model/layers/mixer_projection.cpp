#include "model/layers/mixer_projection.h"

#include <string>
#include <vector>

#include "model/layers/columns.h"

namespace mcpp {
namespace {

/// Returns the boxes of the input projection's weight [groups, width, h] that hold queries, keys, values, output gates
/// and the gates of the recurrence. With low-rank projections, it holds no output gates, and only the gates beta.
std::vector<Box> projection_matrices(const RecurrentSpec& spec, i64 hidden) {
  const ScanShape& shape = spec.shape;
  const Shape global{shape.groups, spec.projection_widths().front(), hidden};
  std::vector<i64> sizes{shape.key_dim, shape.key_dim, shape.heads_per_group * shape.value_dim};
  if (shape.decays_channels())
    sizes.push_back(shape.heads_per_group);
  else
    sizes.insert(sizes.end(), {shape.gate_width(), shape.decay_width()});
  std::vector<Box> matrices;
  i64 row = 0;
  for (const i64 rows : sizes) {
    matrices.push_back(slab(global, 1, row, rows));
    row += rows;
  }
  return matrices;
}

LinearOptions projection_options(const std::string& name, const ModelContext& context, i64 layer) {
  return {.bias = false,
          .init_std = context.config.init_method_std,
          .sequence_parallel = context.sequence_parallel,
          .tp_comm_overlap = context.tp_comm_overlap,
          .fp8 = context.fp8_recipe(name, layer)};
}

LinearOptions in_proj_options(const std::string& name, const RecurrentSpec& spec, const ModelContext& context,
                              i64 layer) {
  LinearOptions options = projection_options(name, context, layer);
  options.matrices = projection_matrices(spec, context.config.hidden_size);
  return options;
}

ScanShape tensor_parallel_part(ScanShape shape, const ModelContext& context) {
  shape.groups /= context.tp.size();
  return shape;
}

}  // namespace

LowRankProjection::LowRankProjection(const std::string& name, i64 layer, i64 rank, const Shape& out,
                                     const ModelContext& context)
    : down_(name + "_down_proj", context.config.hidden_size, rank, context.tp,
            projection_options(name + "_down_proj", context, layer)),
      up_(name + "_up_proj", rank, out, 0, context.tp, projection_options(name + "_up_proj", context, layer)) {}

Tensor LowRankProjection::forward(const Tensor& x, MicrobatchContext& microbatch) {
  return up_.forward(down_.forward(x, microbatch), microbatch);
}

Tensor LowRankProjection::backward(const Tensor& dy, MicrobatchContext& microbatch) {
  return down_.backward(up_.backward(dy, microbatch), microbatch);
}

ActivationPlacement LowRankProjection::output_placement(ActivationPlacement x) const {
  return up_.output_placement(down_.output_placement(x));
}

void LowRankProjection::visit(const ParamVisitor& f) {
  down_.visit(f);
  up_.visit(f);
}

MixerProjection::MixerProjection(const std::string& name, i64 layer, const RecurrentSpec& spec,
                                 const ModelContext& context)
    : shape_(tensor_parallel_part(spec.shape, context)),
      in_proj_(name + ".in_proj", context.config.hidden_size, {spec.shape.groups, spec.projection_widths().front()}, 0,
               context.tp, in_proj_options(name + ".in_proj", spec, context, layer)) {
  if (!shape_.decays_channels()) return;
  const auto low_rank = [&](const char* part, i64 width) {
    return std::make_unique<LowRankProjection>(name + part, layer, shape_.value_dim, Shape{spec.shape.groups, width},
                                               context);
  };
  gate_proj_ = low_rank(".gate", spec.projection_widths().at(1));
  decay_proj_ = low_rank(".decay", spec.projection_widths().at(2));
}

Tensor MixerProjection::join(const Tensor& direct, const Tensor& gates, const Tensor& decays) const {
  const i64 groups = shape_.groups, conv = shape_.conv_width(), betas = shape_.heads_per_group,
            gate = shape_.gate_width();
  const Tensor p = Tensor::like(direct, {direct.dim(0), direct.dim(1), groups * shape_.width()});
  const Heads from = separate_heads(direct, groups), to = separate_heads(p, groups);
  copy_columns(select_columns(from, 0, conv), select_columns(to, 0, conv));
  copy_columns(separate_heads(gates, groups), select_columns(to, conv, gate));
  copy_columns(select_columns(from, conv, betas), select_columns(to, conv + gate, betas));
  copy_columns(separate_heads(decays, groups), select_columns(to, conv + gate + betas, shape_.decay_width() - betas));
  return p;
}

Tensor MixerProjection::extract(const Tensor& dp, i64 first, i64 count) const {
  const Tensor part = Tensor::like(dp, {dp.dim(0), dp.dim(1), shape_.groups * count});
  copy_columns(select_columns(separate_heads(dp, shape_.groups), first, count), separate_heads(part, shape_.groups));
  return part;
}

Tensor MixerProjection::forward(const Tensor& x, MicrobatchContext& microbatch) {
  const Tensor direct = in_proj_.forward(x, microbatch);
  if (!gate_proj_) return direct;
  const Tensor gates = gate_proj_->forward(x, microbatch);
  return join(direct, gates, decay_proj_->forward(x, microbatch));
}

Tensor MixerProjection::backward(const Tensor& dp, MicrobatchContext& microbatch) {
  if (!gate_proj_) return in_proj_.backward(dp, microbatch);
  const i64 groups = shape_.groups, conv = shape_.conv_width(), betas = shape_.heads_per_group,
            gate = shape_.gate_width();
  Tensor dx = decay_proj_->backward(extract(dp, conv + gate + betas, shape_.decay_width() - betas), microbatch);
  ops::add_to(gate_proj_->backward(extract(dp, conv, gate), microbatch), dx);
  const Tensor d_direct = Tensor::like(dp, {dp.dim(0), dp.dim(1), groups * (conv + betas)});
  const Heads from = separate_heads(dp, groups), to = separate_heads(d_direct, groups);
  copy_columns(select_columns(from, 0, conv), select_columns(to, 0, conv));
  copy_columns(select_columns(from, conv + gate, betas), select_columns(to, conv, betas));
  ops::add_to(in_proj_.backward(d_direct, microbatch), dx);
  return dx;
}

ActivationPlacement MixerProjection::output_placement(ActivationPlacement x) const {
  const ActivationPlacement direct = in_proj_.output_placement(x);
  for (const auto* low_rank : {gate_proj_.get(), decay_proj_.get()})
    MCPP_CHECK(!low_rank || low_rank->output_placement(x) == direct, "low-rank channels are ",
               name_of(low_rank->output_placement(x)), ", but the other channels are ", name_of(direct));
  return direct;
}

void MixerProjection::visit(const ParamVisitor& f) {
  in_proj_.visit(f);
  if (gate_proj_) gate_proj_->visit(f), decay_proj_->visit(f);
}

}  // namespace mcpp
