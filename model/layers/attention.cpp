#include "model/layers/attention.h"

#include <cmath>
#include <optional>

#include "model/layers/kv_cache.h"
#include "tensor/dtype.h"
#include "tensor/transfer.h"

namespace mcpp {
namespace {

/// Returns the boxes of queries, keys and values in the weight [groups, (q + 2) * head_dim, h].
std::vector<Box> qkv_matrices(const Shape& weight, i64 head_dim) {
  const i64 keys = weight[1] - 2 * head_dim;
  return {slab(weight, 1, 0, keys), slab(weight, 1, keys, head_dim), slab(weight, 1, keys + head_dim, head_dim)};
}

}  // namespace

QkvProjection::QkvProjection(const std::string& name, i64 layer, const AttentionSpec& spec,
                             StoredRef<ModelContext> context)
    : spec_(spec),
      context_(context),
      region_(context_.tp, context_.sequence_parallel,
              overlaps_communication(context_.tp_comm_overlap, context_.fp8_recipe(name, layer))),
      fp8_(context_.fp8_recipe(name, layer)) {
  const i64 tp = context_.tp.size(), groups = spec_.num_query_groups, head_dim = spec_.head_dim;
  const i64 q_rows = spec_.num_heads / groups * head_dim;
  if (spec_.has_output_gate)
    gate_ = std::make_unique<LinearSlice>(
        name + ".gate", split_box({spec_.query_width(), context_.config.hidden_size}, 0, context_.tp), Box{},
        LinearOptions{.bias = false, .init_std = context_.config.init_method_std});
  if (groups % tp == 0) {
    queries_ = make_slice(name, groups / tp, 0, q_rows + 2 * head_dim);
    set_fp8_rounding_of_weights(name, layer);
    return;
  }
  MCPP_CHECK(tp % groups == 0, groups, " query groups do not divide ", tp, " tensor-parallel ranks");
  const i64 ranks_per_group = tp / groups, own_rows = q_rows / ranks_per_group;
  queries_ = make_slice(name, 1, context_.tp.rank() % ranks_per_group * own_rows, own_rows);
  queries_->visit([](Param& param) { param.others_are_partial = true; });
  keys_values_ = make_slice(name, 1, q_rows, 2 * head_dim);
  keys_values_->visit([&](Param& param) {
    param.placement.tp = {gradient_spread(ActivationPlacement::ColumnSharded),
                          Holders{.first = static_cast<int>(context_.tp.rank() / ranks_per_group * ranks_per_group),
                                  .count = static_cast<int>(ranks_per_group)}};
  });
  set_fp8_rounding_of_weights(name, layer);
}

void QkvProjection::set_fp8_rounding_of_weights(const std::string& name, i64 layer) {
  const std::optional<Fp8Recipe> recipe = context_.fp8_recipe(name, layer);
  if (!recipe) return;
  for (LinearSlice* slice : {queries_.get(), keys_values_.get(), gate_.get()})
    if (slice) set_fp8_rounding(slice->weight, name, recipe->passes);
}

/// Creates the slice of the weight with output rows [first_row, first_row + rows) of `groups` query groups, starting at
/// this rank's first group.
std::unique_ptr<LinearSlice> QkvProjection::make_slice(const std::string& name, i64 groups, i64 first_row,
                                                       i64 rows) const {
  const ModelConfig& config = context_.config;
  const i64 all = spec_.num_query_groups, first = context_.tp.rank() * all / context_.tp.size();
  const i64 rows_per_group = (spec_.num_heads / all + 2) * spec_.head_dim, h = config.hidden_size;
  return std::make_unique<LinearSlice>(name, Box{{all, rows_per_group, h}, {first, first_row, 0}, {groups, rows, h}},
                                       Box{{all, rows_per_group}, {first, first_row}, {groups, rows}},
                                       LinearOptions{.bias = config.qkv_bias(),
                                                     .init_std = config.init_method_std,
                                                     .matrices = qkv_matrices({all, rows_per_group, h}, spec_.head_dim),
                                                     .head_rows = spec_.head_dim});
}

QkvProjection::Output QkvProjection::forward(const Tensor& x, MicrobatchContext& microbatch) {
  microbatch.save(this, x);
  std::vector<Tensor> weights{queries_->weight.value};
  for (const LinearSlice* slice : {keys_values_.get(), gate_.get()})
    if (slice) weights.push_back(slice->weight.value);
  const LinearScales scales = fp8_.forward(this, x, weights, microbatch);
  const auto make = [&](const LinearSlice* slice) {
    return slice ? Tensor::like(x, region_.full_shape(x, slice->outputs())) : Tensor();
  };
  Tensor queries = make(queries_.get()), keys_values = make(keys_values_.get()), gate = make(gate_.get());
  region_.gather_and_multiply(x, [&](const Tensor& rows, i64 first) {
    const auto multiply = [&](const LinearSlice& slice, const Tensor& y) {
      Tensor y_rows = rows_like(rows, y, first);
      slice.multiply(rows, scales, y_rows);
    };
    multiply(*queries_, queries);
    if (keys_values_) multiply(*keys_values_, keys_values);
    if (gate_) multiply(*gate_, gate);
  });
  queries_->add_bias(queries);
  const i64 head_dim = spec_.head_dim, s = queries.dim(0), b = queries.dim(1);
  if (!keys_values_) return {{queries.view({s, b, queries_->weight.box.shape[0], -1, head_dim}), {}}, gate};
  keys_values_->add_bias(keys_values);
  return {{queries.view({s, b, -1, head_dim}), keys_values.view({s, b, 2, head_dim})}, gate};
}

Qkv QkvProjection::make_empty(i64 s, i64 b) const {
  const Shape& box = queries_->weight.box.shape;
  const i64 head_dim = spec_.head_dim, heads = box[1] / head_dim;
  const auto make = [&](Shape shape) { return Tensor::empty(std::move(shape), context_.dtype, context_.device); };
  if (keys_values_) return {make({s, b, heads, head_dim}), make({s, b, 2, head_dim})};
  return {make({s, b, box[0], heads, head_dim}), {}};
}

Tensor QkvProjection::backward(const Output& gradient, MicrobatchContext& microbatch) {
  const auto rows = [](const Tensor& t) { return t.view({t.dim(0), t.dim(1), -1}); };
  const Tensor d_queries = rows(gradient.qkv.queries), d_gate = gradient.gate;
  const Tensor d_keys_values = keys_values_ ? rows(gradient.qkv.keys_values) : Tensor();
  std::vector<Tensor> gradients{d_queries};
  for (const Tensor& part : {d_keys_values, d_gate})
    if (part.defined()) gradients.push_back(part);
  const LinearScales scales = fp8_.backward(this, gradients, microbatch);
  const Tensor x = microbatch.take(this);
  const auto input_gradient = [&](Tensor& dx, i64 first) {
    queries_->input_gradient(rows_like(dx, d_queries, first), scales, dx);
    if (keys_values_) keys_values_->add_input_gradient(rows_like(dx, d_keys_values, first), scales, dx);
    if (gate_) gate_->add_input_gradient(rows_like(dx, d_gate, first), scales, dx);
  };
  return region_.backward(x, microbatch, input_gradient,
                          [this, d_queries, d_keys_values, d_gate, scales](const Tensor& full_x) {
                            queries_->weight_gradient(d_queries, full_x, scales);
                            if (keys_values_) keys_values_->weight_gradient(d_keys_values, full_x, scales);
                            if (gate_) gate_->weight_gradient(d_gate, full_x, scales);
                          });
}

ActivationPlacement QkvProjection::output_placement(ActivationPlacement x) const {
  region_.check_entry(x, queries_->weight.name);
  constexpr auto kOwnHeads = ActivationPlacement::ColumnSharded;
  for (const LinearSlice* slice : {queries_.get(), keys_values_.get(), gate_.get()}) {
    if (!slice) continue;
    check_gradient_spread(slice->weight, kOwnHeads);
    if (slice->bias) check_gradient_spread(*slice->bias, kOwnHeads);
  }
  return kOwnHeads;
}

void QkvProjection::visit(const ParamVisitor& f) {
  queries_->visit(f);
  if (keys_values_) keys_values_->visit(f);
  if (gate_) gate_->visit(f);
}

void QkvProjection::visit_qk_rows(const QkRowVisitor& f) const {
  for (const LinearSlice* slice : {queries_.get(), keys_values_.get()}) {
    if (!slice) continue;
    visit_qk_rows(slice->weight, f);
    if (slice->bias) visit_qk_rows(*slice->bias, f);
  }
}

/// The rows of a group belong to its query heads, its key and its value.
void QkvProjection::visit_qk_rows(const Param& param, const QkRowVisitor& f) const {
  const Box& box = param.box;
  const i64 shared = spec_.num_heads / spec_.num_query_groups, blocks = box.shape[1] / spec_.head_dim,
            elements = param.numel() / (box.shape[0] * blocks);
  for (i64 i = 0; i < box.shape[0] * blocks; ++i) {
    const i64 group = box.offset[0] + i / blocks, block = box.offset[1] / spec_.head_dim + i % blocks;
    if (block > shared) continue;
    const bool is_query = block < shared;
    f(param, {.kind = is_query ? QkRows::Kind::Query : QkRows::Kind::Key,
              .first = i * elements,
              .count = elements,
              .head = group * shared + (is_query ? block : 0),
              .group = group * shared,
              .heads = shared});
  }
}

RotaryTable::Table RotaryTable::make_table(bool is_local) const {
  const ModelConfig& config = context_.config;
  const Shape shape{config.max_positions(), config.rotary_dim() / 2};
  Table table;
  for (Tensor* half : {&table.cos, &table.sin})
    *half = Tensor::empty(shape, accumulate_dtype(context_.dtype), context_.device);
  const double magnitude = is_local ? 1 : config.rope_scaling.magnitude();
  ops::rope_table(config.rotary_frequencies(is_local), magnitude, table.cos, table.sin);
  return table;
}

void RotaryTable::rotate(Heads& x, const Positions& positions, bool is_inverse, RotaryKind kind) {
  if (kind == RotaryKind::None) return;
  const bool is_local = kind == RotaryKind::Local;
  Table& table = is_local ? local_ : global_;
  if (!table.cos.defined()) table = make_table(is_local);
  ops::rope(x, table.cos, table.sin, positions, is_inverse);
}

/// The sines are 0, so that a rotation multiplies by the cosines only.
RotaryTable::Table RotaryTable::make_temperature_table() const {
  const ModelConfig& config = context_.config;
  const i64 positions = config.max_positions(), channels = config.head_dim() / 2;
  const DType dtype = accumulate_dtype(context_.dtype);
  Table table{.cos = Tensor::empty({positions, channels}, dtype, context_.device),
              .sin = Tensor::zeros({positions, channels}, dtype, context_.device)};
  if (context_.device.type() == DeviceType::Meta) return table;
  on_float(dtype, [&]<class T>() {
    std::vector<T> factors;
    for (i64 p = 0; p < positions; ++p) {
      const double chunks = std::floor(static_cast<double>(p + 1) / config.attn_temperature_floor_scale);
      factors.insert(factors.end(), static_cast<std::size_t>(channels),
                     from_double<T>(1 + config.attn_temperature_scale * std::log1p(chunks)));
    }
    write_values(factors, table.cos);
  });
  return table;
}

void RotaryTable::scale_queries(Heads& x, const Positions& positions) {
  if (!temperature_.cos.defined()) temperature_ = make_temperature_table();
  ops::rope(x, temperature_.cos, temperature_.sin, positions, false);
}

SelfAttention::SelfAttention(const std::string& name, i64 layer, const AttentionSpec& spec,
                             StoredRef<ModelContext> context, RotaryTable& rotary)
    : name_(name),
      layer_(layer),
      spec_(spec),
      context_(context),
      rotary_(rotary),
      linear_qkv_(name + ".linear_qkv", layer, spec, context),
      core_attention_(context_.cp, spec.num_heads / context_.tp.size(), linear_qkv_.query_groups()),
      logits_(context_, spec.num_heads),
      linear_proj_(name + ".linear_proj", spec.query_width(), context_.config.hidden_size, context_.tp,
                   {.bias = context_.config.attention_output_bias(),
                    .skip_bias_add = true,
                    .init_std = context_.output_init_std(layer),
                    .sequence_parallel = context_.sequence_parallel,
                    .tp_comm_overlap = context_.tp_comm_overlap,
                    .fp8 = context_.fp8_recipe(name + ".linear_proj", layer)}) {
  if (spec.softmax == SoftmaxType::Learnable)
    softmax_offset_ =
        std::make_unique<Param>(name + ".core_attention.softmax_offset", split_box({spec.num_heads}, 0, context_.tp),
                                Init::Normal, context_.config.init_method_std);
  if (spec.has_l2_norm)
    q_l2_norm_ = std::make_unique<HeadL2Norm>(context_), k_l2_norm_ = std::make_unique<HeadL2Norm>(context_);
  if (!context_.config.qk_layernorm) return;
  q_layernorm_ = std::make_unique<HeadNorm>(name + ".q_layernorm", context_, spec.num_heads);
  k_layernorm_ = std::make_unique<HeadNorm>(name + ".k_layernorm", context_, spec.num_query_groups);
}

CoreAttentionOptions SelfAttention::make_options(const MicrobatchContext& microbatch) const {
  CoreAttentionOptions options;
  options.softmax_scale = context_.config.softmax_scale();
  options.soft_cap = context_.config.attn_logit_softcapping;
  options.queries = {microbatch.positions, microbatch.attention_starts};
  options.keys = microbatch.positions;
  options.window = spec_.window, options.chunk = spec_.chunk;
  options.dropout = context_.dropout_for(context_.config.attention_dropout, name_ + ".core_attention",
                                         microbatch.positions, microbatch);
  options.dropout.first_column = context_.tp.rank() * spec_.num_heads / context_.tp.size();
  options.partition = microbatch.partition;
  options.has_sinks = spec_.softmax != SoftmaxType::Vanilla;
  if (softmax_offset_) options.sinks = &softmax_offset_->value;
  return options;
}

CoreAttentionOptions SelfAttention::make_core_options(const MicrobatchContext& microbatch, i64 s, i64 b) const {
  CoreAttentionOptions options = core_attention_.make_options(make_options(microbatch));
  limit_to_chunks(options, s * context_.cp.partition.heads, b);
  return options;
}

/// Sets the start of each query's document to no earlier than its chunk. The queries are [s, b].
void SelfAttention::limit_to_chunks(CoreAttentionOptions& options, i64 s, i64 b) const {
  if (spec_.chunk == 0) return;
  Tensor starts = Tensor::empty({s, b}, DType::I32, context_.device);
  const Tensor& documents = options.queries.starts;
  ops::chunk_starts(options.queries.ranges, spec_.chunk, documents.defined() ? &documents : nullptr, starts);
  options.queries.starts = starts;
}

void SelfAttention::transform(QkvHeads heads, MicrobatchContext& microbatch) const {
  if (q_layernorm_) q_layernorm_->forward(heads.q, microbatch), k_layernorm_->forward(heads.k, microbatch);
  const Positions positions{microbatch.positions, microbatch.position_starts};
  for (Heads* x : {&heads.q, &heads.k}) rotary_.rotate(*x, positions, false, spec_.rope);
  if (q_l2_norm_) q_l2_norm_->forward(heads.q, microbatch), k_l2_norm_->forward(heads.k, microbatch);
  if (spec_.has_temperature) rotary_.scale_queries(heads.q, positions);
}

void SelfAttention::transform_backward(QkvHeads gradient, MicrobatchContext& microbatch) const {
  const Positions positions{microbatch.positions, microbatch.position_starts};
  if (spec_.has_temperature) rotary_.scale_queries(gradient.q, positions);
  if (q_l2_norm_) k_l2_norm_->backward(gradient.k, microbatch), q_l2_norm_->backward(gradient.q, microbatch);
  for (Heads* x : {&gradient.q, &gradient.k}) rotary_.rotate(*x, positions, true, spec_.rope);
  if (q_layernorm_) k_layernorm_->backward(gradient.k, microbatch), q_layernorm_->backward(gradient.q, microbatch);
}

Tensor SelfAttention::attend_cached(const QkvHeads& heads, MicrobatchContext& microbatch) {
  const KvCache::View cache = microbatch.kv_cache->append(layer_, heads.k, heads.v, microbatch.positions.first);
  CoreAttentionOptions options = make_options(microbatch);
  options.keys = {};
  limit_to_chunks(options, heads.q.seq, heads.q.batch);
  AttentionResult result = LocalAttention().forward({heads.q, cache.k, cache.v}, options);
  if (options.has_sinks) ops::attention_sink(options.sinks, result);
  return result.out;
}

Tensor SelfAttention::apply_gate(const Tensor& output, const Tensor& gate, MicrobatchContext& microbatch) const {
  if (!gate.defined()) return output;
  microbatch.save(this, output);
  microbatch.save(this, gate);
  Tensor gated = Tensor::like(output);
  ops::sigmoid_gate(output, gate, gated);
  return gated;
}

Tensor SelfAttention::gate_backward(Tensor& d_output, MicrobatchContext& microbatch) const {
  if (!spec_.has_output_gate) return {};
  const Tensor gate = microbatch.take(this), output = microbatch.take(this);
  Tensor d_gate = gate;  // overwrites the gate, which is no longer needed
  ops::sigmoid_gate_backward(d_output, output, gate, d_output, d_gate);
  return d_gate;
}

void SelfAttention::save(const ContextAttention::SavedAttention& saved, MicrobatchContext& microbatch) const {
  microbatch.save(this, saved.qkv.queries);
  if (!saved.qkv.is_fused()) microbatch.save(this, saved.qkv.keys_values);
  microbatch.save(this, saved.result.lse);
  microbatch.save(this, saved.result.out);
}

ContextAttention::SavedAttention SelfAttention::take(MicrobatchContext& microbatch) const {
  ContextAttention::SavedAttention saved;
  saved.result.out = microbatch.take(this), saved.result.lse = microbatch.take(this);
  if (core_attention_.shares_groups(linear_qkv_.shares_groups())) saved.qkv.keys_values = microbatch.take(this);
  saved.qkv.queries = microbatch.take(this);
  return saved;
}

Tensor SelfAttention::forward(const Tensor& x, MicrobatchContext& microbatch) {
  const auto [qkv, gate] = linear_qkv_.forward(x, microbatch);
  const QkvHeads heads = qkv.heads();
  transform(heads, microbatch);
  if (microbatch.kv_cache)
    return linear_proj_.forward(apply_gate(attend_cached(heads, microbatch), gate, microbatch), microbatch);

  CoreAttentionOptions core_options = make_core_options(microbatch, heads.q.seq, heads.q.batch);
  core_options.max_logits = logits_.of_pass(microbatch);
  const ContextAttention::SavedAttention saved = core_attention_.forward(qkv, core_options);
  core_options.max_logits = nullptr;  // a recomputation has the same logits
  std::optional<MicrobatchContext::DiscardScope>
      discard;  // the output may also be the input of the gate or linear_proj, so one recomputation serves both
  if (context_.recompute.core_attn) {
    std::vector<Tensor> inputs{saved.qkv.queries};
    if (!saved.qkv.is_fused()) inputs.push_back(saved.qkv.keys_values);
    discard.emplace(microbatch, saved.result.out, std::move(inputs),
                    [this, core_options](std::span<const Tensor> saved_qkv) {
                      return core_attention_.recompute_output(
                          {saved_qkv[0], saved_qkv.size() > 1 ? saved_qkv[1] : Tensor()}, core_options);
                    });
  }
  save(saved, microbatch);
  return linear_proj_.forward(apply_gate(core_attention_.output(saved, core_options), gate, microbatch), microbatch);
}

Tensor SelfAttention::backward(const Tensor& dy, MicrobatchContext& microbatch) {
  Tensor d_output = linear_proj_.backward(dy, microbatch);
  const Tensor d_gate = gate_backward(d_output, microbatch);
  const i64 s = d_output.dim(0), b = d_output.dim(1);
  const CoreAttentionOptions core_options = make_core_options(microbatch, s, b);
  const Qkv empty = core_attention_.exchanges_heads() ? linear_qkv_.make_empty(s, b) : Qkv();
  Qkv gradient;
  const auto core_backward = [&](const ContextAttention::SinkGradient& d_sinks) {
    gradient = core_attention_.backward(d_output, take(microbatch), core_options, empty, d_sinks);
  };
  if (softmax_offset_)
    softmax_offset_->add_grad([&](const Tensor& sum, float beta) { core_backward({sum, beta}); });
  else
    core_backward({});
  transform_backward(gradient.heads(), microbatch);
  return linear_qkv_.backward({gradient, d_gate}, microbatch);
}

ActivationPlacement SelfAttention::output_placement(ActivationPlacement x) const {
  const ActivationPlacement heads = linear_qkv_.output_placement(x);
  for (const HeadNorm* norm : {q_layernorm_.get(), k_layernorm_.get()})
    if (norm) norm->check_placement(heads);
  if (softmax_offset_) check_gradient_spread(*softmax_offset_, heads);
  return linear_proj_.output_placement(heads);
}

void SelfAttention::visit(const ParamVisitor& f) {
  linear_qkv_.visit(f);
  for (HeadNorm* norm : {q_layernorm_.get(), k_layernorm_.get()})
    if (norm) norm->visit(f);
  if (softmax_offset_) f(*softmax_offset_);
  linear_proj_.visit(f);
}

}  // namespace mcpp
