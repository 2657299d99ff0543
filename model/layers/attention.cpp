#include "model/layers/attention.h"

#include <cmath>
#include <optional>

#include "model/layers/kv_cache.h"
#include "tensor/wide.h"

namespace mcpp {
namespace {

/// Query heads of a tensor-parallel rank.
i64 heads_of(const ModelContext& context) {
  return context.config.num_attention_heads / context.tp.size();
}

}  // namespace

void RotaryTable::make() {
  const ModelConfig& config = context_.config;
  const Shape shape{config.max_positions(), config.rotary_dim() / 2};
  for (Tensor* table : {&cos_, &sin_}) *table = Tensor::empty(shape, wide(context_.dtype), context_.device);
  ops::rope_table(config.rotary_frequencies(), config.rope_scaling.magnitude(), cos_, sin_);
}

void RotaryTable::rotate(Heads& x, const Positions& positions, bool inverse) {
  if (context_.config.position_embedding_type != PositionEmbedding::Rope) return;
  if (!cos_.defined()) make();
  ops::rope(x, cos_, sin_, positions, inverse);
}

SelfAttention::SelfAttention(const std::string& name, i64 layer, KeptRef<ModelContext> context, RotaryTable& rotary)
    : name_(name),
      layer_(layer),
      context_(context),
      rotary_(rotary),
      linear_qkv_(name + ".linear_qkv", context),
      core_attention_(context_.cp, heads_of(context_), linear_qkv_.query_groups()),
      linear_proj_(name + ".linear_proj", context_.config.num_attention_heads * context_.config.head_dim(),
                   context_.config.hidden_size, context_.tp,
                   {.bias = context_.config.attention_output_bias(),
                    .skip_bias_add = true,
                    .init_std = context_.output_init_std(),
                    .sequence_parallel = context_.sequence_parallel}) {}

AttentionOptions SelfAttention::options(const Pass& pass) const {
  AttentionOptions options;
  options.softmax_scale = 1 / std::sqrt(static_cast<double>(context_.config.head_dim()));
  options.queries = {pass.positions, pass.attention_starts};
  options.keys = pass.positions;
  options.window = context_.config.window_of(layer_);
  options.dropout =
      context_.dropout_for(context_.config.attention_dropout, name_ + ".core_attention", pass.positions, pass);
  options.dropout.first_column = context_.tp.rank() * heads_of(context_);
  return options;
}

void SelfAttention::rotate(QkvHeads heads, const Pass& pass, bool inverse) const {
  const Positions positions{pass.positions, pass.position_starts};
  for (Heads* x : {&heads.q, &heads.k}) rotary_.rotate(*x, positions, inverse);
}

Tensor SelfAttention::attend_cached(const QkvHeads& heads, Pass& pass) {
  const KvCache::View cache = pass.kv_cache->append(layer_, heads.k, heads.v, pass.positions.first);
  AttentionOptions with_past = options(pass);
  with_past.keys = {};
  return LocalAttention().forward({heads.q, cache.k, cache.v}, {with_past, nullptr}).out;
}

void SelfAttention::save(const ContextAttention::Kept& kept, Pass& pass) const {
  pass.save(this, kept.qkv.queries);
  if (!kept.qkv.is_fused()) pass.save(this, kept.qkv.keys_values);
  pass.save(this, kept.result.lse);
  pass.save(this, kept.result.out);
}

ContextAttention::Kept SelfAttention::take(Pass& pass) const {
  ContextAttention::Kept kept;
  kept.result.out = pass.take(this), kept.result.lse = pass.take(this);
  if (core_attention_.shares_groups(linear_qkv_.shares_groups())) kept.qkv.keys_values = pass.take(this);
  kept.qkv.queries = pass.take(this);
  return kept;
}

Tensor SelfAttention::forward(const Tensor& x, Pass& pass) {
  const Qkv qkv = linear_qkv_.forward(x, pass);
  rotate(qkv.heads(), pass, false);
  if (pass.kv_cache) return linear_proj_.forward(attend_cached(qkv.heads(), pass), pass);

  const CoreAttentionOptions how = core_attention_.options(options(pass), pass.cut);
  const ContextAttention::Kept kept = core_attention_.forward(qkv, how);
  std::optional<Pass::DiscardScope> discard;  // where the output is linear_proj's input, too, one run serves both
  if (context_.recompute.core_attn) {
    discard.emplace(pass, kept.result.out,
                    [this, kept_qkv = kept.qkv, how] { return core_attention_.forward_again(kept_qkv, how); });
  }
  save(kept, pass);
  return linear_proj_.forward(core_attention_.output(kept, how), pass);
}

Tensor SelfAttention::backward(const Tensor& dy, Pass& pass) {
  const Tensor d_output = linear_proj_.backward(dy, pass);
  const i64 s = d_output.dim(0), b = d_output.dim(1);
  const CoreAttentionOptions how = core_attention_.options(options(pass), pass.cut);
  const Qkv empty = core_attention_.exchanges_heads() ? linear_qkv_.empty(s, b) : Qkv();
  const Qkv gradient = core_attention_.backward(d_output, take(pass), how, empty);
  rotate(gradient.heads(), pass, true);
  return linear_qkv_.backward(gradient, pass);
}

ActivationPlacement SelfAttention::gives(ActivationPlacement x) const {
  return linear_proj_.gives(linear_qkv_.gives(x));
}

void SelfAttention::visit(const ParamVisitor& f) {
  linear_qkv_.visit(f);
  linear_proj_.visit(f);
}

}  // namespace mcpp
