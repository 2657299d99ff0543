#include "parallel/cp/context_parallel.h"

#include "parallel/cp/gathered_attention.h"
#include "parallel/cp/ring_attention.h"
#include "tensor/dtype.h"
#include "tensor/ops/attention_logits.h"

namespace mcpp {

void attend(const QkvHeads& x, const CoreAttentionOptions& options, AttentionResult& y) {
  ops::attention(x, options, y);
  if (options.max_logits) ops::max_attention_logits(x, options, *options.max_logits);
}

AttentionResult LocalAttention::forward(const QkvHeads& x, const CoreAttentionOptions& options) {
  const Heads& q = x.q;
  AttentionResult y{.out = Tensor::like(q.base, {q.seq, q.batch, q.heads * x.v.head_dim}),
                    .lse = Tensor::empty({q.batch, q.heads, q.seq}, accumulate_dtype(q.base.dtype()), q.base.device())};
  attend(x, options, y);
  return y;
}

void LocalAttention::backward(const Tensor& dout, const QkvHeads& x, const AttentionResult& y,
                              const CoreAttentionOptions& options, QkvHeads& dx) {
  ops::attention_backward(dout, x, y, options, dx);
}

std::unique_ptr<CoreAttention> ContextParallel::make_core_attention() const {
  if (partition.rings == 1) return std::make_unique<LocalAttention>();
  if (comm_type == CpCommType::AllGather) return std::make_unique<GatheredAttention>(*ring);
  return std::make_unique<RingAttention>(*ring);
}

std::unique_ptr<HeadExchange> ContextParallel::make_head_exchange(i64 query_groups) const {
  return partition.heads == 1 ? nullptr : std::make_unique<HeadExchange>(*heads, query_groups);
}

}  // namespace mcpp
