#include "model/layers/attention.h"

#include <cmath>
#include <optional>

#include "model/layers/kv_cache.h"
#include "tensor/wide.h"

namespace mcpp {
namespace {

struct AttentionOutput {
  Tensor out;  // [s, b, heads * head_dim]
  Tensor lse;  // [b, heads, s]
};

AttentionOutput run(const Heads& q, const Heads& k, const Heads& v, const AttentionOptions& options) {
  AttentionOutput result{
      .out = Tensor::like(q.base, {q.seq, q.batch, q.heads * q.head_dim}),
      .lse = Tensor::empty({q.batch, q.heads, q.seq}, wide(q.base.dtype()), q.base.device()),
  };
  ops::attention(q, k, v, options, result.out, result.lse);
  return result;
}

}  // namespace

RotaryTable RotaryTable::make(const ModelContext& context) {
  const ModelConfig& config = context.config;
  if (config.position_embedding_type != PositionEmbedding::Rope) return {};
  const Shape shape{config.max_positions(), config.rotary_dim() / 2};
  RotaryTable table{Tensor::empty(shape, wide(context.dtype), context.device),
                    Tensor::empty(shape, wide(context.dtype), context.device)};
  ops::rope_table(config.rotary_base, config.rotary_dim(), table.cos, table.sin);
  return table;
}

SelfAttention::SelfAttention(const std::string& name, i64 layer, const ModelContext& context, const RotaryTable& rotary)
    : name_(name),
      layer_(layer),
      context_(context),
      rotary_(rotary),
      linear_qkv_(name + ".linear_qkv", context),
      linear_proj_(name + ".linear_proj", context.config.num_attention_heads * context.config.head_dim(),
                   context.config.hidden_size, context.tp,
                   {.bias = context.config.attention_output_bias(),
                    .skip_bias_add = true,
                    .init_std = context.output_init_std(),
                    .sequence_parallel = context.sequence_parallel}) {}

AttentionOptions SelfAttention::options(const Pass& pass) const {
  AttentionOptions options;
  options.softmax_scale = 1 / std::sqrt(static_cast<double>(context_.config.head_dim()));
  options.dropout =
      context_.dropout_for(context_.config.attention_dropout, name_ + ".core_attention", pass.first_position, pass);
  options.dropout.first_column = context_.tp.rank() * (context_.config.num_attention_heads / context_.tp.size());
  return options;
}

void SelfAttention::rotate(PackedHeads heads, i64 first_position, bool inverse) const {
  if (!rotary_.cos.defined()) return;
  ops::rope(heads.q, rotary_.cos, rotary_.sin, first_position, inverse);
  ops::rope(heads.k, rotary_.cos, rotary_.sin, first_position, inverse);
}

Tensor SelfAttention::attend_cached(const PackedHeads& heads, Pass& pass) {
  const KvCache::View cache = pass.kv_cache->append(layer_, heads.k, heads.v, pass.first_position);
  AttentionOptions with_past = options(pass);
  with_past.query_offset = pass.first_position;
  return run(heads.q, cache.k, cache.v, with_past).out;
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
  const PackedHeads heads = qkv.heads();
  rotate(heads, pass.first_position, false);
  if (pass.kv_cache) return linear_proj_.forward(attend_cached(heads, pass), pass);

  const AttentionOutput result = run(heads.q, heads.k, heads.v, options(pass));
  std::optional<Pass::DiscardScope>
      discard;  // the output is saved here and as linear_proj's input: one run serves both
  if (context_.recompute.core_attn) {
    discard.emplace(pass, result.out, [heads, how = options(pass)] { return run(heads.q, heads.k, heads.v, how).out; });
  }
  save(qkv, pass);
  pass.save(this, result.lse);
  pass.save(this, result.out);
  return linear_proj_.forward(result.out, pass);
}

Tensor SelfAttention::backward(const Tensor& dy, Pass& pass) {
  const Tensor d_out = linear_proj_.backward(dy, pass);
  const Tensor out = pass.take(this), lse = pass.take(this);
  const Qkv qkv = take(pass), d_qkv = qkv.like();
  const PackedHeads heads = qkv.heads();
  PackedHeads gradients = d_qkv.heads();
  ops::attention_backward(d_out, heads.q, heads.k, heads.v, out, lse, options(pass), gradients.q, gradients.k,
                          gradients.v);
  rotate(gradients, pass.first_position, true);
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
