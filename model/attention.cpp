#include "model/attention.h"

#include <cmath>
#include <optional>

#include "model/kv_cache.h"
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
      linear_qkv_(
          name + ".linear_qkv", context.config.hidden_size,
          {context.config.query_groups(),
           (context.config.num_attention_heads / context.config.query_groups() + 2) * context.config.head_dim()},
          0, context.tp, {.bias = context.config.qkv_bias(), .init_std = context.config.init_method_std}),
      linear_proj_(
          name + ".linear_proj", context.config.num_attention_heads * context.config.head_dim(),
          context.config.hidden_size, context.tp,
          {.bias = context.config.add_bias_linear, .skip_bias_add = true, .init_std = context.output_init_std()}) {}

AttentionOptions SelfAttention::options(const Pass& pass) const {
  AttentionOptions options;
  options.softmax_scale = 1 / std::sqrt(static_cast<double>(context_.config.head_dim()));
  options.dropout = context_.dropout_for(context_.config.attention_dropout, name_ + ".core_attention", pass);
  options.dropout.first_column = context_.tp.rank() * (context_.config.num_attention_heads / context_.tp.size());
  return options;
}

void SelfAttention::rotate(PackedHeads& heads, i64 first_position, bool inverse) const {
  if (!rotary_.cos.defined()) return;
  ops::rope(heads.q, rotary_.cos, rotary_.sin, first_position, inverse);
  ops::rope(heads.k, rotary_.cos, rotary_.sin, first_position, inverse);
}

Tensor SelfAttention::project_qkv(const Tensor& x, Pass& pass) {
  const ModelConfig& config = context_.config;
  const i64 q_per_group = config.num_attention_heads / config.query_groups();
  const Tensor qkv = linear_qkv_.forward(x, pass).view({x.dim(0), x.dim(1), -1, q_per_group + 2, config.head_dim()});
  PackedHeads heads = packed_heads(qkv);
  rotate(heads, pass.first_position, false);
  return qkv;
}

Tensor SelfAttention::attend_cached(const Tensor& qkv, Pass& pass) {
  const PackedHeads heads = packed_heads(qkv);
  const KvCache::View cache = pass.kv_cache->append(layer_, heads.k, heads.v, pass.first_position);
  AttentionOptions with_past = options(pass);
  with_past.query_offset = pass.first_position;
  return run(heads.q, cache.k, cache.v, with_past).out;
}

Tensor SelfAttention::forward(const Tensor& x, Pass& pass) {
  const Tensor qkv = project_qkv(x, pass);
  if (pass.kv_cache) return linear_proj_.forward(attend_cached(qkv, pass), pass);

  const PackedHeads heads = packed_heads(qkv);
  const AttentionOutput result = run(heads.q, heads.k, heads.v, options(pass));
  std::optional<Pass::DiscardScope>
      discard;  // the output is saved here and as linear_proj's input: one run serves both
  if (context_.recompute.core_attn) {
    discard.emplace(pass, result.out, [heads, how = options(pass)] { return run(heads.q, heads.k, heads.v, how).out; });
  }
  pass.save(this, qkv);
  pass.save(this, result.lse);
  pass.save(this, result.out);
  return linear_proj_.forward(result.out, pass);
}

Tensor SelfAttention::backward(const Tensor& dy, Pass& pass) {
  const Tensor d_out = linear_proj_.backward(dy, pass);
  const Tensor out = pass.take(this), lse = pass.take(this), qkv = pass.take(this);
  const PackedHeads heads = packed_heads(qkv);
  const Tensor d_qkv = Tensor::like(qkv);
  PackedHeads gradients = packed_heads(d_qkv);
  ops::attention_backward(d_out, heads.q, heads.k, heads.v, out, lse, options(pass), gradients.q, gradients.k,
                          gradients.v);
  rotate(gradients, pass.first_position, true);
  return linear_qkv_.backward(d_qkv.view({d_qkv.dim(0), d_qkv.dim(1), -1}), pass);
}

void SelfAttention::visit(const ParamVisitor& f) {
  linear_qkv_.visit(f);
  linear_proj_.visit(f);
}

}  // namespace mcpp
