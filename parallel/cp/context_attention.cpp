#include "parallel/cp/context_attention.h"

namespace mcpp {

ContextAttention::ContextAttention(const ContextParallel& cp, i64 heads, i64 query_groups, i64 key_dim, i64 value_dim)
    : exchange_(cp.make_head_exchange(query_groups)),
      core_(cp.make_core_attention()),
      cp_(cp),
      heads_(heads),
      key_dim_(key_dim),
      value_dim_(value_dim) {}

QkvHeads ContextAttention::views(const Qkv& x) const {
  QkvHeads heads = x.heads();
  const auto narrow = [](Heads& view, i64 dim) {
    if (dim == 0 || dim == view.head_dim) return;
    MCPP_CHECK(view.group_size == 1 && dim < view.head_dim, "a head of ", view.head_dim, " channels has no ", dim);
    view.head_dim = dim;
  };
  narrow(heads.q, key_dim_), narrow(heads.k, key_dim_), narrow(heads.v, value_dim_);
  return heads;
}

CoreAttentionOptions ContextAttention::make_options(const CoreAttentionOptions& local) const {
  MCPP_CHECK(local.partition || cp_.size() == 1, "context parallelism over ", cp_.size(),
             " ranks needs a partition of the samples");
  CoreAttentionOptions result = local;
  if (!exchange_) return result;
  result.queries.ranges = result.keys = result.dropout.positions = result.partition->member_positions(cp_.member());
  result.dropout.first_column += exchange_->first_head(heads_);
  return result;
}

/// Returns the elements of x [heads] for this rank's heads after an exchange, if there is one.
Tensor ContextAttention::own_heads(const Tensor& x) const {
  if (!exchange_) return x;
  const i64 first = exchange_->first_head(heads_);
  return x.slice(first, first + heads_ / cp_.partition.heads);
}

AttentionResult ContextAttention::attend(const Qkv& qkv, const CoreAttentionOptions& options) {
  CoreAttentionOptions core_options = options;
  Tensor max_logits;
  if (options.max_logits) {
    max_logits = own_heads(*options.max_logits);
    core_options.max_logits = &max_logits;
  }
  AttentionResult result = core_->forward(views(qkv), core_options);
  if (!options.has_sinks) return result;
  const Tensor sinks = options.sinks ? own_heads(*options.sinks) : Tensor();
  ops::attention_sink(options.sinks ? &sinks : nullptr, result);
  return result;
}

ContextAttention::SavedAttention ContextAttention::forward(const Qkv& local, const CoreAttentionOptions& options) {
  SavedAttention saved{.qkv = exchange_ ? exchange_->to_heads(local, options.partition->runs()) : local, .result = {}};
  saved.result = attend(saved.qkv, options);
  return saved;
}

Qkv ContextAttention::backward(const Tensor& d_output, const SavedAttention& saved, const CoreAttentionOptions& options,
                               Qkv buffer, const SinkGradient& d_sinks) {
  const Tensor dout = exchange_ ? exchange_->to_heads(d_output, options.partition->runs()) : d_output;
  if (d_sinks.values.defined()) {
    Tensor all = d_sinks.values, own = own_heads(all);
    if (exchange_ && d_sinks.beta == 0) ops::fill_zero(all);
    ops::attention_sink_backward(dout, saved.result, own_heads(*options.sinks), own, d_sinks.beta);
  }
  Qkv gradient = exchange_ ? exchange_->gradient_of_heads(saved.qkv) : saved.qkv.like();
  if (sends_padding()) ops::fill_zero(gradient.queries);
  QkvHeads heads = views(gradient);
  core_->backward(dout, views(saved.qkv), saved.result, options, heads);
  if (!exchange_) return gradient;
  exchange_->to_positions(gradient, buffer, options.partition->runs());
  return buffer;
}

}  // namespace mcpp
