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

CoreAttentionOptions ContextAttention::make_options(const AttentionOptions& local,
                                                    std::shared_ptr<const SamplePartition> partition) const {
  MCPP_CHECK(partition || cp_.size() == 1, "context parallelism over ", cp_.size(),
             " ranks needs a partition of the samples");
  CoreAttentionOptions result{local, std::move(partition)};
  if (!exchange_) return result;
  result.queries.ranges = result.keys = result.dropout.positions = result.partition->member_positions(cp_.member());
  result.dropout.first_column += exchange_->first_head(heads_);
  return result;
}

ContextAttention::SavedAttention ContextAttention::forward(const Qkv& local, const CoreAttentionOptions& options) {
  SavedAttention saved{.qkv = exchange_ ? exchange_->to_heads(local, options.partition->runs()) : local, .result = {}};
  saved.result = core_->forward(views(saved.qkv), options);
  return saved;
}

Qkv ContextAttention::backward(const Tensor& d_output, const SavedAttention& saved, const CoreAttentionOptions& options,
                               Qkv buffer) {
  Qkv gradient = exchange_ ? exchange_->gradient_of_heads(saved.qkv) : saved.qkv.like();
  QkvHeads heads = views(gradient);
  core_->backward(exchange_ ? exchange_->to_heads(d_output, options.partition->runs()) : d_output, views(saved.qkv),
                  saved.result, options, heads);
  if (!exchange_) return gradient;
  exchange_->to_positions(gradient, buffer, options.partition->runs());
  return buffer;
}

}  // namespace mcpp
