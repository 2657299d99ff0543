#include "parallel/cp/context_attention.h"

namespace mcpp {

ContextAttention::ContextAttention(const ContextParallel& cp, i64 heads, i64 query_groups)
    : exchange_(cp.make_head_exchange(query_groups)), core_(cp.make_core_attention()), cp_(cp), heads_(heads) {}

AttentionOptions ContextAttention::options(AttentionOptions mine, i64 rows) const {
  if (!exchange_) return mine;
  mine.queries.ranges = mine.keys = mine.dropout.positions = cp_.attention_positions(rows);
  mine.dropout.first_column += exchange_->first_head(heads_);
  return mine;
}

ContextAttention::Kept ContextAttention::forward(const Qkv& mine, const AttentionOptions& how) {
  Kept kept{.qkv = exchange_ ? exchange_->to_heads(mine) : mine, .result = {}};
  kept.result = core_->forward(kept.qkv.heads(), how);
  return kept;
}

Qkv ContextAttention::backward(const Tensor& d_output, const Kept& kept, const AttentionOptions& how, Qkv empty) {
  Qkv gradient = exchange_ ? exchange_->gradient_of_heads(kept.qkv) : kept.qkv.like();
  QkvHeads heads = gradient.heads();
  core_->backward(exchange_ ? exchange_->to_heads(d_output) : d_output, kept.qkv.heads(), kept.result, how, heads);
  if (!exchange_) return gradient;
  exchange_->to_positions(gradient, empty);
  return empty;
}

}  // namespace mcpp
