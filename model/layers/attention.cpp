#include "model/layers/attention.h"

#include <cmath>
#include <optional>

#include "model/layers/kv_cache.h"
#include "tensor/wide.h"

namespace mcpp {

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
      core_attention_(std::make_unique<LocalAttention>()),
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
  options.dropout.first_column = context_.tp.rank() * (context_.config.num_attention_heads / context_.tp.size());
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
  return core_attention_->forward({heads.q, cache.k, cache.v}, with_past).out;
}

void SelfAttention::save(const Qkv& qkv, Pass& pass) const {
  pass.save(this, qkv.queries);
  if (!qkv.is_fused()) pass.save(this, qkv.keys_values);
}

Qkv SelfAttention::take(Pass& pass) const {
  Qkv qkv;
  if (linear_qkv_.shares_groups()) qkv.keys_values = pass.take(this);
  qkv.queries = pass.take(this);
  return qkv;
}

Tensor SelfAttention::forward(const Tensor& x, Pass& pass) {
  const Qkv qkv = linear_qkv_.forward(x, pass);
  const QkvHeads heads = qkv.heads();
  rotate(heads, pass, false);
  if (pass.kv_cache) return linear_proj_.forward(attend_cached(heads, pass), pass);

  const AttentionResult result = core_attention_->forward(heads, options(pass));
  std::optional<Pass::DiscardScope>
      discard;  // the output is saved here and as linear_proj's input: one run serves both
  if (context_.recompute.core_attn) {
    discard.emplace(pass, result.out,
                    [this, heads, how = options(pass)] { return core_attention_->forward(heads, how).out; });
  }
  save(qkv, pass);
  pass.save(this, result.lse);
  pass.save(this, result.out);
  return linear_proj_.forward(result.out, pass);
}

Tensor SelfAttention::backward(const Tensor& dy, Pass& pass) {
  const Tensor d_out = linear_proj_.backward(dy, pass);
  AttentionResult result;
  result.out = pass.take(this), result.lse = pass.take(this);
  const Qkv qkv = take(pass), d_qkv = qkv.like();
  QkvHeads gradients = d_qkv.heads();
  core_attention_->backward(d_out, qkv.heads(), result, options(pass), gradients);
  rotate(gradients, pass, true);
  return linear_qkv_.backward(d_qkv, pass);
}

ActivationPlacement SelfAttention::gives(ActivationPlacement x) const {
  return linear_proj_.gives(linear_qkv_.gives(x));
}

void SelfAttention::visit(const ParamVisitor& f) {
  linear_qkv_.visit(f);
  linear_proj_.visit(f);
}

}  // namespace mcpp
