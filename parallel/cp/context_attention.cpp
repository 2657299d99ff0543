#include "parallel/cp/context_attention.h"

namespace mcpp {

ContextAttention::ContextAttention(const ContextParallel& cp, i64 heads, i64 query_groups)
    : exchange_(cp.make_head_exchange(query_groups)), core_(cp.make_core_attention()), cp_(cp), heads_(heads) {}

CoreAttentionOptions ContextAttention::options(const AttentionOptions& local,
                                               std::shared_ptr<const SamplePartition> partition) const {
  MCPP_CHECK(partition || cp_.size() == 1, "samples of ", cp_.size(), " ranks have no partition");
  CoreAttentionOptions how{local, std::move(partition)};
  if (!exchange_) return how;
  how.queries.ranges = how.keys = how.dropout.positions = how.partition->of_member(cp_.member());
  how.dropout.first_column += exchange_->first_head(heads_);
  return how;
}

ContextAttention::SavedAttention ContextAttention::forward(const Qkv& local, const CoreAttentionOptions& how) {
  SavedAttention kept{.qkv = exchange_ ? exchange_->to_heads(local, how.partition->runs()) : local, .result = {}};
  kept.result = core_->forward(kept.qkv.heads(), how);
  return kept;
}

Qkv ContextAttention::backward(const Tensor& d_output, const SavedAttention& kept, const CoreAttentionOptions& how,
                               Qkv empty) {
  Qkv gradient = exchange_ ? exchange_->gradient_of_heads(kept.qkv) : kept.qkv.like();
  QkvHeads heads = gradient.heads();
  core_->backward(exchange_ ? exchange_->to_heads(d_output, how.partition->runs()) : d_output, kept.qkv.heads(),
                  kept.result, how, heads);
  if (!exchange_) return gradient;
  exchange_->to_positions(gradient, empty, how.partition->runs());
  return empty;
}

}  // namespace mcpp
