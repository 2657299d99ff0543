#include "model/layers/multi_latent_attention.h"

#include <optional>

#include "model/layers/columns.h"
#include "model/layers/kv_cache.h"
#include "tensor/dtype.h"

namespace mcpp {
namespace {

/// Returns a view of x [s, b, width] with `heads` identical heads.
Heads repeat_heads(const Tensor& x, i64 heads) {
  Heads result = separate_heads(x, 1);
  result.heads = heads, result.group_stride = 0;
  return result;
}

/// Returns the sum over heads, [s, b, width] in the accumulate dtype.
Tensor sum_of_heads(const Heads& x) {
  const i64 row = x.batch * x.head_dim;
  const Tensor rows = Tensor::like(x.base, {x.heads, x.seq * row});
  copy_columns(x, {.base = rows,
                   .offset = 0,
                   .seq = x.seq,
                   .batch = x.batch,
                   .heads = x.heads,
                   .head_dim = x.head_dim,
                   .group_size = 1,
                   .seq_stride = row,
                   .batch_stride = x.head_dim,
                   .group_stride = x.seq * row});
  Tensor sum = Tensor::empty({x.seq * row}, accumulate_dtype(rows.dtype()), rows.device());
  ops::column_sum(rows, sum, 0);
  return sum.view({x.seq, x.batch, x.head_dim});
}

LinearOptions linear_options(const std::string& name, const ModelContext& context, i64 layer) {
  return {.bias = false,
          .init_std = context.config.init_method_std,
          .sequence_parallel = context.sequence_parallel,
          .tp_comm_overlap = context.tp_comm_overlap,
          .fp8 = context.fp8_recipe(name, layer)};
}

double latent_norm_epsilon(const ModelConfig& config) {
  return config.mla.latent_norm_epsilon > 0 ? config.mla.latent_norm_epsilon : config.norm_epsilon;
}

/// Returns the projection to queries, from the latent or, without one, from the hidden states.
ColumnParallelLinear make_query_projection(const std::string& name, i64 layer, const MultiLatentAttentionSpec& spec,
                                           const ModelContext& context) {
  const bool has_latent = spec.q_lora_rank > 0;
  const std::string module = name + (has_latent ? ".linear_q_up_proj" : ".linear_q_proj");
  LinearOptions options = linear_options(module, context, layer);
  options.head_rows = spec.query_dim();
  return {module,
          has_latent ? spec.q_lora_rank : context.config.hidden_size,
          {spec.num_heads, spec.query_dim()},
          0,
          context.tp,
          options};
}

LinearOptions kv_down_options(const std::string& name, const MultiLatentAttentionSpec& spec,
                              const ModelContext& context, i64 layer) {
  LinearOptions options = linear_options(name, context, layer);
  const Shape weight{spec.latent_width(), context.config.hidden_size};
  options.matrices = {slab(weight, 0, 0, spec.kv_lora_rank),
                      slab(weight, 0, spec.kv_lora_rank, spec.qk_pos_emb_head_dim)};
  return options;
}

LinearOptions kv_up_options(const std::string& name, const MultiLatentAttentionSpec& spec, const ModelContext& context,
                            i64 layer) {
  LinearOptions options = linear_options(name, context, layer);
  const Shape weight{spec.num_heads, spec.qk_head_dim + spec.v_head_dim, spec.kv_lora_rank};
  options.matrices = {slab(weight, 1, 0, spec.qk_head_dim), slab(weight, 1, spec.qk_head_dim, spec.v_head_dim)};
  options.head_rows = std::max(spec.qk_head_dim, spec.v_head_dim);
  return options;
}

}  // namespace

LatentQueries::LatentQueries(const std::string& name, i64 layer, const MultiLatentAttentionSpec& spec,
                             const ModelContext& context)
    : linear_up_(make_query_projection(name, layer, spec, context)) {
  if (spec.q_lora_rank == 0) return;
  linear_down_ =
      std::make_unique<ReplicatedLinear>(name + ".linear_q_down_proj", context.config.hidden_size, spec.q_lora_rank,
                                         context.tp, linear_options(name + ".linear_q_down_proj", context, layer));
  layernorm_ =
      std::make_unique<Norm>(name + ".q_layernorm", context, spec.q_lora_rank, latent_norm_epsilon(context.config));
}

Tensor LatentQueries::forward(const Tensor& x, MicrobatchContext& microbatch) {
  if (!linear_down_) return linear_up_.forward(x, microbatch);
  return linear_up_.forward(layernorm_->forward(linear_down_->forward(x, microbatch), microbatch), microbatch);
}

Tensor LatentQueries::backward(const Tensor& gradient, MicrobatchContext& microbatch) {
  const Tensor d_latent = linear_up_.backward(gradient, microbatch);
  if (!linear_down_) return d_latent;
  return linear_down_->backward(layernorm_->backward(d_latent, microbatch), microbatch);
}

ActivationPlacement LatentQueries::output_placement(ActivationPlacement x) const {
  return linear_up_.output_placement(linear_down_ ? layernorm_->output_placement(linear_down_->output_placement(x))
                                                  : x);
}

void LatentQueries::visit(const ParamVisitor& f) {
  if (linear_down_) linear_down_->visit(f), layernorm_->visit(f);
  linear_up_.visit(f);
}

LatentKeysValues::LatentKeysValues(const std::string& name, i64 layer, const MultiLatentAttentionSpec& spec,
                                   const ModelContext& context)
    : rank_(spec.kv_lora_rank),
      rotary_dim_(spec.qk_pos_emb_head_dim),
      region_(context.tp, context.sequence_parallel),
      linear_down_(name + ".linear_kv_down_proj", context.config.hidden_size, spec.latent_width(), context.tp,
                   kv_down_options(name + ".linear_kv_down_proj", spec, context, layer)),
      layernorm_(name + ".kv_layernorm", context, spec.kv_lora_rank, latent_norm_epsilon(context.config)),
      linear_up_(name + ".linear_kv_up_proj", spec.kv_lora_rank, {spec.num_heads, spec.qk_head_dim + spec.v_head_dim},
                 0, context.tp, kv_up_options(name + ".linear_kv_up_proj", spec, context, layer)) {}

LatentKeysValues::Latents LatentKeysValues::forward(const Tensor& x, MicrobatchContext& microbatch) {
  const Tensor down = linear_down_.forward(x, microbatch);
  const i64 s = down.dim(0), b = down.dim(1);
  const Tensor latent = Tensor::like(down, {s, b, rank_}), rotary_key = Tensor::like(down, {s, b, rotary_dim_});
  copy_columns(select_columns(separate_heads(down, 1), 0, rank_), separate_heads(latent, 1));
  copy_columns(select_columns(separate_heads(down, 1), rank_, rotary_dim_), separate_heads(rotary_key, 1));
  PendingTensor full_rotary_key = region_.gather_sequence(rotary_key);
  const Tensor normalized = layernorm_.forward(latent, microbatch);
  return {normalized, full_rotary_key.wait()};
}

Tensor LatentKeysValues::backward(const Latents& gradient, MicrobatchContext& microbatch) {
  PendingTensor d_rotary_key = region_.sum(gradient.rotary_key);
  const Tensor d_latent = layernorm_.backward(gradient.latent, microbatch);
  const Tensor d_down = Tensor::like(d_latent, {d_latent.dim(0), d_latent.dim(1), rank_ + rotary_dim_});
  copy_columns(separate_heads(d_latent, 1), select_columns(separate_heads(d_down, 1), 0, rank_));
  copy_columns(separate_heads(d_rotary_key.wait(), 1), select_columns(separate_heads(d_down, 1), rank_, rotary_dim_));
  return linear_down_.backward(d_down, microbatch);
}

ActivationPlacement LatentKeysValues::output_placement(ActivationPlacement x) const {
  return linear_up_.output_placement(layernorm_.output_placement(linear_down_.output_placement(x)));
}

void LatentKeysValues::visit(const ParamVisitor& f) {
  linear_down_.visit(f);
  layernorm_.visit(f);
  linear_up_.visit(f);
}

MultiLatentAttention::MultiLatentAttention(const std::string& name, i64 layer, const MultiLatentAttentionSpec& spec,
                                           StoredRef<ModelContext> context, RotaryTable& rotary)
    : name_(name),
      layer_(layer),
      spec_(spec),
      head_dim_(spec.core().head_dim),
      context_(context),
      rotary_(rotary),
      queries_(name, layer, spec, context_),
      keys_values_(name, layer, spec, context_),
      core_attention_(context_.cp, local_heads(), local_heads(), spec.query_dim(), spec.v_head_dim),
      logits_(context_, spec.num_heads),
      linear_proj_(name + ".linear_proj", spec.value_width(), context_.config.hidden_size, context_.tp,
                   {.bias = context_.config.attention_output_bias(),
                    .skip_bias_add = true,
                    .init_std = context_.output_init_std(layer),
                    .sequence_parallel = context_.sequence_parallel,
                    .tp_comm_overlap = context_.tp_comm_overlap,
                    .fp8 = context_.fp8_recipe(name + ".linear_proj", layer)}) {}

AttentionOptions MultiLatentAttention::make_options(const MicrobatchContext& microbatch) const {
  AttentionOptions options;
  options.softmax_scale = context_.config.softmax_scale();
  options.soft_cap = context_.config.attn_logit_softcapping;
  options.queries = {microbatch.positions, microbatch.attention_starts};
  options.keys = microbatch.positions;
  options.window = spec_.window;
  options.dropout = context_.dropout_for(context_.config.attention_dropout, name_ + ".core_attention",
                                         microbatch.positions, microbatch);
  options.dropout.first_column = context_.tp.rank() * local_heads();
  return options;
}

void MultiLatentAttention::visit_qk_rows(const QkRowVisitor& f) {
  const i64 nope = spec_.qk_head_dim, rope = spec_.qk_pos_emb_head_dim;
  const auto visit_rows = [&](const Param& weight, QkRows::Kind kind, i64 first_row, i64 rows) {
    const i64 elements = weight.box.shape[2], of_head = weight.box.shape[1] * elements;
    for (i64 i = 0; i < weight.box.shape[0]; ++i) {
      const i64 head = weight.box.offset[0] + i;
      f(weight, {.kind = kind,
                 .first = i * of_head + first_row * elements,
                 .count = rows * elements,
                 .head = head,
                 .group = head,
                 .heads = 1});
    }
  };
  queries_.visit_up([&](const Param& weight) {
    visit_rows(weight, QkRows::Kind::Query, 0, nope);
    visit_rows(weight, QkRows::Kind::RotaryQuery, nope, rope);
  });
  keys_values_.visit_up([&](const Param& weight) { visit_rows(weight, QkRows::Kind::Key, 0, nope); });
}

void MultiLatentAttention::rotate(Heads x, const MicrobatchContext& microbatch, bool is_inverse) const {
  rotary_.rotate(x, {microbatch.positions, microbatch.position_starts}, is_inverse, spec_.rope);
}

Qkv MultiLatentAttention::assemble(const Tensor& queries, const Tensor& keys_values, const Tensor& rotary_key,
                                   const MicrobatchContext& microbatch) const {
  const i64 heads = local_heads(), nope = spec_.qk_head_dim, rope = spec_.qk_pos_emb_head_dim;
  Qkv qkv{Tensor::like(queries, {queries.dim(0), queries.dim(1), heads, 3, head_dim_}), {}};
  if (core_attention_.sends_padding()) ops::fill_zero(qkv.queries);
  const auto [q, k, v] = qkv.heads();
  const Heads from = separate_heads(keys_values, heads);
  copy_columns(separate_heads(queries, heads), select_columns(q, 0, spec_.query_dim()));
  rotate(select_columns(q, nope, rope), microbatch, false);
  copy_columns(select_columns(from, 0, nope), select_columns(k, 0, nope));
  copy_columns(repeat_heads(rotary_key, heads), select_columns(k, nope, rope));
  copy_columns(select_columns(from, nope, spec_.v_head_dim), select_columns(v, 0, spec_.v_head_dim));
  return qkv;
}

MultiLatentAttention::Parts MultiLatentAttention::assemble_backward(const Qkv& gradient,
                                                                    const MicrobatchContext& microbatch) const {
  const i64 heads = local_heads(), nope = spec_.qk_head_dim, rope = spec_.qk_pos_emb_head_dim;
  const auto [q, k, v] = gradient.heads();
  Parts parts{.queries = Tensor::like(gradient.queries, {q.seq, q.batch, heads * spec_.query_dim()}),
              .keys_values = Tensor::like(gradient.queries, {q.seq, q.batch, heads * (nope + spec_.v_head_dim)}),
              .rotary_key = sum_of_heads(select_columns(k, nope, rope))};
  rotate(separate_heads(parts.rotary_key, 1), microbatch, true);
  rotate(select_columns(q, nope, rope), microbatch, true);
  copy_columns(select_columns(q, 0, spec_.query_dim()), separate_heads(parts.queries, heads));
  const Heads to = separate_heads(parts.keys_values, heads);
  copy_columns(select_columns(k, 0, nope), select_columns(to, 0, nope));
  copy_columns(select_columns(v, 0, spec_.v_head_dim), select_columns(to, nope, spec_.v_head_dim));
  return parts;
}

Tensor MultiLatentAttention::attend(const Qkv& qkv, MicrobatchContext& microbatch) {
  CoreAttentionOptions options = core_attention_.make_options({make_options(microbatch), microbatch.partition});
  options.max_logits = logits_.of_pass(microbatch);
  const ContextAttention::SavedAttention saved = core_attention_.forward(qkv, options);
  options.max_logits = nullptr;                            // a recomputation has the same logits
  std::optional<MicrobatchContext::DiscardScope> discard;  // the output may also be the input of linear_proj
  if (context_.recompute.core_attn)
    discard.emplace(microbatch, saved.result.out, std::vector{saved.qkv.queries},
                    [this, options](std::span<const Tensor> saved_qkv) {
                      return core_attention_.recompute_output({saved_qkv[0], {}}, options);
                    });
  microbatch.save(this, saved.qkv.queries);
  microbatch.save(this, saved.result.lse);
  microbatch.save(this, saved.result.out);
  return linear_proj_.forward(core_attention_.output(saved, options), microbatch);
}

Tensor MultiLatentAttention::attend_to_latents(const Tensor& queries, const Heads& latents,
                                               const AttentionOptions& options,
                                               const MicrobatchContext& microbatch) const {
  const i64 s = queries.dim(0), b = queries.dim(1), heads = local_heads(), nope = spec_.qk_head_dim,
            rope = spec_.qk_pos_emb_head_dim, rank = spec_.kv_lora_rank, values = spec_.v_head_dim;
  const auto by_head = [&](const Tensor& x) {  // view of [heads, s * b, width]
    Heads view = separate_heads(x.view({heads * s, b, -1}), 1);
    view.seq = s, view.heads = heads, view.group_stride = s * view.seq_stride;
    return view;
  };
  const auto matrix = [&](i64 head, i64 first, i64 rows) {
    const Tensor weight = keys_values_.up_weight().slice(head, head + 1).as_matrix();
    return weight.slice(first, first + rows);
  };
  const Tensor plain = Tensor::like(queries, {heads, s * b, nope}),
               projected = Tensor::like(queries, {heads, s * b, rank}),
               absorbed = Tensor::like(queries, {s, b, heads * spec_.latent_width()});
  copy_columns(select_columns(separate_heads(queries, heads), 0, nope), by_head(plain));
  for (i64 head = 0; head < heads; ++head) {
    Tensor to = projected.slice(head, head + 1).as_matrix();
    ops::matmul(plain.slice(head, head + 1).as_matrix(), matrix(head, 0, nope), to);
  }
  const Heads q = separate_heads(absorbed, heads);
  copy_columns(by_head(projected), select_columns(q, 0, rank));
  copy_columns(select_columns(separate_heads(queries, heads), nope, rope), select_columns(q, rank, rope));
  rotate(select_columns(q, rank, rope), microbatch, false);
  const Heads values_of_latents = select_columns(latents, 0, rank);
  const Tensor mixed = LocalAttention().forward({q, latents, values_of_latents}, {options, nullptr}).out;
  copy_columns(separate_heads(mixed, heads), by_head(projected));
  const Tensor out_by_head = Tensor::like(queries, {heads, s * b, values}),
               out = Tensor::like(queries, {s, b, heads * values});
  for (i64 head = 0; head < heads; ++head) {
    Tensor to = out_by_head.slice(head, head + 1).as_matrix();
    ops::matmul(projected.slice(head, head + 1).as_matrix(), matrix(head, nope, values), to, {.transpose_b = true});
  }
  copy_columns(by_head(out_by_head), separate_heads(out, heads));
  return out;
}

Tensor MultiLatentAttention::attend_cached(const Tensor& queries, const Latents& latents,
                                           MicrobatchContext& microbatch) {
  const i64 first = microbatch.positions.first;
  const bool holds_latents = KvCache::holds_latents(spec_, context_.device.type());
  AttentionOptions options = make_options(microbatch);
  options.keys = {};
  Heads all;
  if (holds_latents) {
    const Tensor rows = Tensor::like(queries, {queries.dim(0), queries.dim(1), spec_.latent_width()});
    copy_columns(separate_heads(latents.latent, 1), select_columns(separate_heads(rows, 1), 0, spec_.kv_lora_rank));
    copy_columns(separate_heads(latents.rotary_key, 1),
                 select_columns(separate_heads(rows, 1), spec_.kv_lora_rank, spec_.qk_pos_emb_head_dim));
    all = microbatch.kv_cache->append_rows(layer_, rows, first);
    if (first > 0) return attend_to_latents(queries, all, options, microbatch);
  }
  const Qkv qkv =
      assemble(queries, keys_values_.project_up(latents.latent, microbatch), latents.rotary_key, microbatch);
  QkvHeads heads = core_attention_.views(qkv);
  if (!holds_latents) {
    const KvCache::View cache = microbatch.kv_cache->append(layer_, qkv.heads().k, qkv.heads().v, first);
    heads.k = select_columns(cache.k, 0, spec_.query_dim()), heads.v = select_columns(cache.v, 0, spec_.v_head_dim);
  }
  return LocalAttention().forward(heads, {options, nullptr}).out;
}

Tensor MultiLatentAttention::forward(const Tensor& x, MicrobatchContext& microbatch) {
  const Tensor queries = queries_.forward(x, microbatch);
  const Latents latents = keys_values_.forward(x, microbatch);
  rotate(separate_heads(latents.rotary_key, 1), microbatch, false);
  if (microbatch.kv_cache) return linear_proj_.forward(attend_cached(queries, latents, microbatch), microbatch);
  const Tensor keys_values = keys_values_.project_up(latents.latent, microbatch);
  return attend(assemble(queries, keys_values, latents.rotary_key, microbatch), microbatch);
}

Tensor MultiLatentAttention::backward(const Tensor& dy, MicrobatchContext& microbatch) {
  const Tensor d_output = linear_proj_.backward(dy, microbatch);
  const CoreAttentionOptions options = core_attention_.make_options({make_options(microbatch), microbatch.partition});
  ContextAttention::SavedAttention saved;
  saved.result.out = microbatch.take(this);
  saved.result.lse = microbatch.take(this);
  saved.qkv.queries = microbatch.take(this);
  const Shape local{d_output.dim(0), d_output.dim(1), local_heads(), 3, head_dim_};
  const Qkv buffer = core_attention_.exchanges_heads() ? Qkv{Tensor::like(d_output, local), {}} : Qkv();
  const Parts parts = assemble_backward(core_attention_.backward(d_output, saved, options, buffer, {}), microbatch);
  const Tensor d_latent = keys_values_.project_up_backward(parts.keys_values, microbatch);
  Tensor dx = keys_values_.backward({d_latent, parts.rotary_key}, microbatch);
  ops::add_to(queries_.backward(parts.queries, microbatch), dx);
  return dx;
}

ActivationPlacement MultiLatentAttention::output_placement(ActivationPlacement x) const {
  const ActivationPlacement heads = queries_.output_placement(x);
  MCPP_CHECK(keys_values_.output_placement(x) == heads, name_, ": queries are ", name_of(heads),
             ", unlike keys and values");
  return linear_proj_.output_placement(heads);
}

void MultiLatentAttention::visit(const ParamVisitor& f) {
  queries_.visit(f);
  keys_values_.visit(f);
  linear_proj_.visit(f);
}

}  // namespace mcpp
