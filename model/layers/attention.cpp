#include "model/layers/attention.h"

#include <cmath>
#include <optional>

#include "model/layers/kv_cache.h"
#include "tensor/wide.h"

namespace mcpp {

RotaryTable RotaryTable::make(const ModelContext& context) {
  const ModelConfig& config = context.config;
  if (config.position_embedding_type != PositionEmbedding::Rope) return {};
  const Shape shape{config.max_positions(), config.rotary_dim() / 2};
  RotaryTable table{Tensor::empty(shape, wide(context.dtype), context.device),
                    Tensor::empty(shape, wide(context.dtype), context.device)};
  ops::rope_table(config.rotary_base, config.rotary_dim(), table.cos, table.sin);
  return table;
}

SelfAttention::SelfAttention(const std::string& name, i64 layer, KeptRef<ModelContext> context,
                             KeptRef<RotaryTable> rotary)
    : name_(name),
      layer_(layer),
      context_(context),
      rotary_(rotary),
      linear_qkv_(name + ".linear_qkv", context),
      exchange_(context_.cp.make_head_exchange(linear_qkv_.query_groups())),
      core_attention_(context_.cp.make_core_attention()),
      linear_proj_(name + ".linear_proj", context_.config.num_attention_heads * context_.config.head_dim(),
                   context_.config.hidden_size, context_.tp,
                   {.bias = context_.config.attention_output_bias(),
                    .skip_bias_add = true,
                    .init_std = context_.output_init_std(),
                    .sequence_parallel = context_.sequence_parallel}) {}

AttentionOptions SelfAttention::options(i64 rows, const Pass& pass) const {
  const i64 heads = context_.config.num_attention_heads / context_.tp.size();
  AttentionOptions options;
  options.softmax_scale = 1 / std::sqrt(static_cast<double>(context_.config.head_dim()));
  options.queries = {pass.positions, pass.attention_starts};
  if (exchange_) options.queries = exchange_->positions(options.queries, rows);
  options.keys = options.queries.ranges;
  options.dropout =
      context_.dropout_for(context_.config.attention_dropout, name_ + ".core_attention", options.keys, pass);
  options.dropout.first_column = context_.tp.rank() * heads + (exchange_ ? exchange_->first_head(heads) : 0);
  return options;
}

void SelfAttention::rotate(QkvHeads heads, const Pass& pass, bool inverse) const {
  if (!rotary_.cos.defined()) return;
  const Positions positions{pass.positions, pass.position_starts};
  for (Heads* x : {&heads.q, &heads.k}) ops::rope(*x, rotary_.cos, rotary_.sin, positions, inverse);
}

Tensor SelfAttention::attend_cached(const QkvHeads& heads, Pass& pass) {
  const KvCache::View cache = pass.kv_cache->append(layer_, heads.k, heads.v, pass.positions.first);
  AttentionOptions with_past = options(heads.q.seq, pass);
  with_past.keys = {};
  return core_attention_->forward({heads.q, cache.k, cache.v}, with_past).out;
}

void SelfAttention::save(const Qkv& qkv, Pass& pass) const {
  pass.save(this, qkv.queries);
  if (!qkv.is_fused()) pass.save(this, qkv.keys_values);
}

Qkv SelfAttention::take(Pass& pass) const {
  Qkv qkv;
  if (exchange_ ? exchange_->shares_groups() : linear_qkv_.shares_groups()) qkv.keys_values = pass.take(this);
  qkv.queries = pass.take(this);
  return qkv;
}

Tensor SelfAttention::forward(const Tensor& x, Pass& pass) {
  Qkv qkv = linear_qkv_.forward(x, pass);
  rotate(qkv.heads(), pass, false);
  if (pass.kv_cache) return linear_proj_.forward(attend_cached(qkv.heads(), pass), pass);

  const AttentionOptions how = options(qkv.queries.dim(0), pass);
  if (exchange_) qkv = exchange_->to_heads(qkv);
  const QkvHeads heads = qkv.heads();
  const AttentionResult result = core_attention_->forward(heads, how);
  std::optional<Pass::DiscardScope> discard;  // where the output is linear_proj's input, too, one run serves both
  if (context_.recompute.core_attn) {
    discard.emplace(pass, result.out, [this, heads, how] { return core_attention_->forward(heads, how).out; });
  }
  save(qkv, pass);
  pass.save(this, result.lse);
  pass.save(this, result.out);
  return linear_proj_.forward(exchange_ ? exchange_->to_positions(result.out) : result.out, pass);
}

Qkv SelfAttention::core_backward(const Tensor& d_out, Pass& pass) {
  AttentionResult result;
  result.out = pass.take(this), result.lse = pass.take(this);
  const Qkv qkv = take(pass);
  const AttentionOptions how = options(d_out.dim(0), pass);
  Qkv gradient = exchange_ ? exchange_->gradient_of_heads(qkv) : qkv.like();
  QkvHeads heads = gradient.heads();
  core_attention_->backward(exchange_ ? exchange_->to_heads(d_out) : d_out, qkv.heads(), result, how, heads);
  if (!exchange_) return gradient;
  Qkv mine = linear_qkv_.empty(d_out.dim(0), d_out.dim(1));
  exchange_->to_positions(gradient, mine);
  return mine;
}

Tensor SelfAttention::backward(const Tensor& dy, Pass& pass) {
  const Qkv gradient = core_backward(linear_proj_.backward(dy, pass), pass);
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
