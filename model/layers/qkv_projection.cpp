#include "model/layers/qkv_projection.h"

namespace mcpp {
namespace {

/// Splits the weight [groups, (q + 2) * head_dim, h].
std::vector<Box> queries_keys_values(const Shape& weight, i64 head_dim) {
  const i64 keys = weight[1] - 2 * head_dim;
  return {slab(weight, 1, 0, keys), slab(weight, 1, keys, head_dim), slab(weight, 1, keys + head_dim, head_dim)};
}

}  // namespace

QkvProjection::QkvProjection(const std::string& name, i64 layer, StoredRef<ModelContext> context)
    : context_(context), region_(context_.tp, context_.sequence_parallel), fp8_(context_.fp8_of(layer)) {
  const ModelConfig& config = context_.config;
  const i64 tp = context_.tp.size(), groups = config.query_groups(), head_dim = config.head_dim();
  const i64 q_rows = config.num_attention_heads / groups * head_dim;
  if (groups % tp == 0) {
    queries_ = make_slice(name, groups / tp, 0, q_rows + 2 * head_dim);
    return;
  }
  MCPP_CHECK(tp % groups == 0, groups, " query groups over ", tp, " ranks");
  const i64 sharing = tp / groups, own_rows = q_rows / sharing;
  queries_ = make_slice(name, 1, context_.tp.rank() % sharing * own_rows, own_rows);
  keys_values_ = make_slice(name, 1, q_rows, 2 * head_dim);
  keys_values_->visit([&](Param& param) {
    param.placement.tp = {
        gradient_spread(ActivationPlacement::ColumnSharded),
        Holders{.first = static_cast<int>(context_.tp.rank() / sharing * sharing), .count = static_cast<int>(sharing)}};
  });
}

/// Takes `groups` query groups starting at this rank's first one, and of each the output rows [first_row, first_row +
/// rows).
std::unique_ptr<LinearSlice> QkvProjection::make_slice(const std::string& name, i64 groups, i64 first_row,
                                                       i64 rows) const {
  const ModelConfig& config = context_.config;
  const i64 all = config.query_groups(), first = context_.tp.rank() * all / context_.tp.size();
  const i64 rows_per_group = (config.num_attention_heads / all + 2) * config.head_dim(), h = config.hidden_size;
  return std::make_unique<LinearSlice>(
      name, Box{{all, rows_per_group, h}, {first, first_row, 0}, {groups, rows, h}},
      Box{{all, rows_per_group}, {first, first_row}, {groups, rows}},
      LinearOptions{.bias = config.qkv_bias(),
                    .init_std = config.init_method_std,
                    .matrices = queries_keys_values({all, rows_per_group, h}, config.head_dim())});
}

Qkv QkvProjection::forward(const Tensor& x, MicrobatchContext& pass) {
  pass.save(this, x);
  const Tensor& own_queries = queries_->weight.value;
  const LinearScales scales = keys_values_ ? fp8_.forward(this, x, {own_queries, keys_values_->weight.value}, pass)
                                           : fp8_.forward(this, x, {own_queries}, pass);
  const Tensor whole_x = region_.whole(x).wait();
  const i64 head_dim = context_.config.head_dim(), s = whole_x.dim(0), b = whole_x.dim(1);
  const Tensor queries = queries_->multiply_add(whole_x, scales);
  if (keys_values_)
    return {queries.view({s, b, -1, head_dim}), keys_values_->multiply_add(whole_x, scales).view({s, b, 2, head_dim})};
  return {queries.view({s, b, queries_->weight.box.shape[0], -1, head_dim}), {}};
}

Qkv QkvProjection::empty(i64 s, i64 b) const {
  const Shape& box = queries_->weight.box.shape;
  const i64 head_dim = context_.config.head_dim(), heads = box[1] / head_dim;
  const auto make = [&](Shape shape) { return Tensor::empty(std::move(shape), context_.dtype, context_.device); };
  if (keys_values_) return {make({s, b, heads, head_dim}), make({s, b, 2, head_dim})};
  return {make({s, b, box[0], heads, head_dim}), {}};
}

Tensor QkvProjection::backward(const Qkv& gradient, MicrobatchContext& pass) {
  const auto rows = [](const Tensor& t) { return t.view({t.dim(0), t.dim(1), -1}); };
  const Tensor d_queries = rows(gradient.queries);
  const Tensor d_keys_values = keys_values_ ? rows(gradient.keys_values) : Tensor();
  const LinearScales scales =
      keys_values_ ? fp8_.backward(this, {d_queries, d_keys_values}, pass) : fp8_.backward(this, {d_queries}, pass);
  const Tensor x = pass.take(this);
  const auto input_gradient = [&] {
    Tensor dx = queries_->input_gradient(d_queries, scales);
    if (keys_values_) keys_values_->add_input_gradient(d_keys_values, scales, dx);
    return dx;
  };
  return region_.backward(x, pass, input_gradient, [this, d_queries, d_keys_values, scales](const Tensor& whole_x) {
    queries_->weight_gradient(d_queries, whole_x, scales);
    if (keys_values_) keys_values_->weight_gradient(d_keys_values, whole_x, scales);
  });
}

ActivationPlacement QkvProjection::output_placement(ActivationPlacement x) const {
  region_.check_entry(x, queries_->weight.name);
  constexpr auto kOwnHeads = ActivationPlacement::ColumnSharded;
  for (const LinearSlice* slice : {queries_.get(), keys_values_.get()}) {
    if (!slice) continue;
    check_gradient_spread(slice->weight, kOwnHeads);
    if (slice->bias) check_gradient_spread(*slice->bias, kOwnHeads);
  }
  return kOwnHeads;
}

void QkvProjection::visit(const ParamVisitor& f) {
  queries_->visit(f);
  if (keys_values_) keys_values_->visit(f);
}

}  // namespace mcpp
