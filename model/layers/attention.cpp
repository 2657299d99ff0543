#include "model/layers/attention.h"

#include <optional>

#include "model/layers/kv_cache.h"
#include "tensor/dtype.h"

namespace mcpp {
namespace {

/// Query heads per tensor-parallel rank.
i64 heads_of(const ModelContext& context) {
  return context.config.num_attention_heads / context.tp.size();
}

}  // namespace

RotaryTable::Table RotaryTable::make(bool is_local) const {
  const ModelConfig& config = context_.config;
  const Shape shape{config.max_positions(), config.rotary_dim() / 2};
  Table table;
  for (Tensor* half : {&table.cos, &table.sin})
    *half = Tensor::empty(shape, accumulate_dtype(context_.dtype), context_.device);
  const double magnitude = is_local ? 1 : config.rope_scaling.magnitude();
  ops::rope_table(config.rotary_frequencies(is_local), magnitude, table.cos, table.sin);
  return table;
}

void RotaryTable::rotate(Heads& x, const Positions& positions, bool inverse, bool is_local) {
  if (context_.config.position_embedding_type != PositionEmbedding::Rope) return;
  Table& table = is_local ? local_ : all_;
  if (!table.cos.defined()) table = make(is_local);
  ops::rope(x, table.cos, table.sin, positions, inverse);
}

SelfAttention::SelfAttention(const std::string& name, i64 layer, StoredRef<ModelContext> context, RotaryTable& rotary)
    : name_(name),
      layer_(layer),
      context_(context),
      rotary_(rotary),
      linear_qkv_(name + ".linear_qkv", layer, context),
      core_attention_(context_.cp, heads_of(context_), linear_qkv_.query_groups()),
      linear_proj_(name + ".linear_proj", context_.config.num_attention_heads * context_.config.head_dim(),
                   context_.config.hidden_size, context_.tp,
                   {.bias = context_.config.attention_output_bias(),
                    .skip_bias_add = true,
                    .init_std = context_.output_init_std(),
                    .sequence_parallel = context_.sequence_parallel,
                    .fp8 = context_.fp8_of(layer)}) {
  if (!context_.config.qk_layernorm) return;
  q_layernorm_ = std::make_unique<HeadNorm>(name + ".q_layernorm", context_, context_.config.num_attention_heads);
  k_layernorm_ = std::make_unique<HeadNorm>(name + ".k_layernorm", context_, context_.config.query_groups());
}

AttentionOptions SelfAttention::options(const MicrobatchContext& pass) const {
  AttentionOptions options;
  options.softmax_scale = context_.config.softmax_scale();
  options.soft_cap = context_.config.attn_logit_softcapping;
  options.queries = {pass.positions, pass.attention_starts};
  options.keys = pass.positions;
  options.window = context_.config.window_of(layer_);
  options.dropout =
      context_.dropout_for(context_.config.attention_dropout, name_ + ".core_attention", pass.positions, pass);
  options.dropout.first_column = context_.tp.rank() * heads_of(context_);
  return options;
}

void SelfAttention::rotate(QkvHeads heads, const MicrobatchContext& pass, bool inverse) const {
  const Positions positions{pass.positions, pass.position_starts};
  const bool is_local = context_.config.has_local_rope(layer_);
  for (Heads* x : {&heads.q, &heads.k}) rotary_.rotate(*x, positions, inverse, is_local);
}

Tensor SelfAttention::attend_cached(const QkvHeads& heads, MicrobatchContext& pass) {
  const KvCache::View cache = pass.kv_cache->append(layer_, heads.k, heads.v, pass.positions.first);
  AttentionOptions with_past = options(pass);
  with_past.keys = {};
  return LocalAttention().forward({heads.q, cache.k, cache.v}, {with_past, nullptr}).out;
}

void SelfAttention::save(const ContextAttention::SavedAttention& kept, MicrobatchContext& pass) const {
  pass.save(this, kept.qkv.queries);
  if (!kept.qkv.is_fused()) pass.save(this, kept.qkv.keys_values);
  pass.save(this, kept.result.lse);
  pass.save(this, kept.result.out);
}

ContextAttention::SavedAttention SelfAttention::take(MicrobatchContext& pass) const {
  ContextAttention::SavedAttention kept;
  kept.result.out = pass.take(this), kept.result.lse = pass.take(this);
  if (core_attention_.shares_groups(linear_qkv_.shares_groups())) kept.qkv.keys_values = pass.take(this);
  kept.qkv.queries = pass.take(this);
  return kept;
}

Tensor SelfAttention::forward(const Tensor& x, MicrobatchContext& pass) {
  const Qkv qkv = linear_qkv_.forward(x, pass);
  if (q_layernorm_) q_layernorm_->forward(qkv.heads().q, pass), k_layernorm_->forward(qkv.heads().k, pass);
  rotate(qkv.heads(), pass, false);
  if (pass.kv_cache) return linear_proj_.forward(attend_cached(qkv.heads(), pass), pass);

  const CoreAttentionOptions how = core_attention_.options(options(pass), pass.partition);
  const ContextAttention::SavedAttention kept = core_attention_.forward(qkv, how);
  std::optional<MicrobatchContext::DiscardScope>
      discard;  // the output may also be linear_proj's input, so one recomputation serves both
  if (context_.recompute.core_attn) {
    std::vector<Tensor> inputs{kept.qkv.queries};
    if (!kept.qkv.is_fused()) inputs.push_back(kept.qkv.keys_values);
    discard.emplace(pass, kept.result.out, std::move(inputs), [this, how](std::span<const Tensor> kept_qkv) {
      return core_attention_.recompute_output({kept_qkv[0], kept_qkv.size() > 1 ? kept_qkv[1] : Tensor()}, how);
    });
  }
  save(kept, pass);
  return linear_proj_.forward(core_attention_.output(kept, how), pass);
}

Tensor SelfAttention::backward(const Tensor& dy, MicrobatchContext& pass) {
  const Tensor d_output = linear_proj_.backward(dy, pass);
  const i64 s = d_output.dim(0), b = d_output.dim(1);
  const CoreAttentionOptions how = core_attention_.options(options(pass), pass.partition);
  const Qkv empty = core_attention_.exchanges_heads() ? linear_qkv_.empty(s, b) : Qkv();
  const Qkv gradient = core_attention_.backward(d_output, take(pass), how, empty);
  rotate(gradient.heads(), pass, true);
  if (q_layernorm_) k_layernorm_->backward(gradient.heads().k, pass), q_layernorm_->backward(gradient.heads().q, pass);
  return linear_qkv_.backward(gradient, pass);
}

ActivationPlacement SelfAttention::output_placement(ActivationPlacement x) const {
  const ActivationPlacement heads = linear_qkv_.output_placement(x);
  for (const HeadNorm* norm : {q_layernorm_.get(), k_layernorm_.get()})
    if (norm) norm->check_placement(heads);
  return linear_proj_.output_placement(heads);
}

void SelfAttention::visit(const ParamVisitor& f) {
  linear_qkv_.visit(f);
  for (HeadNorm* norm : {q_layernorm_.get(), k_layernorm_.get()})
    if (norm) norm->visit(f);
  linear_proj_.visit(f);
}

}  // namespace mcpp
