#include "parallel/cp/core_attention.h"

#include "tensor/dtype.h"

namespace mcpp {

AttentionResult LocalAttention::forward(const QkvHeads& x, const CoreAttentionOptions& options) {
  const Heads& q = x.q;
  AttentionResult y{.out = Tensor::like(q.base, {q.seq, q.batch, q.heads * q.head_dim}),
                    .lse = Tensor::empty({q.batch, q.heads, q.seq}, accumulate_dtype(q.base.dtype()), q.base.device())};
  ops::attention(x, options, y);
  return y;
}

void LocalAttention::backward(const Tensor& dout, const QkvHeads& x, const AttentionResult& y,
                              const CoreAttentionOptions& options, QkvHeads& dx) {
  ops::attention_backward(dout, x, y, options, dx);
}

}  // namespace mcpp
