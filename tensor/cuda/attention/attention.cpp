#include "tensor/cuda/attention/attention.h"

#include "tensor/ops/attention_blocks.h"
#include "tensor/ops/kernels.h"

namespace mcpp {
namespace {

bool has_dtype_of(const Tensor& result, const Heads& x) {
  return result.dtype() == x.base.dtype();
}
bool have_dtype_of(const QkvHeads& dx, const Heads& x) {
  return has_dtype_of(dx.q.base, x) && has_dtype_of(dx.k.base, x) && has_dtype_of(dx.v.base, x);
}
/// Allocates dense heads shaped like x, with the dtype of `type`.
Heads dense_like(const Heads& x, const Tensor& type) {
  return dense_heads(Tensor::like(type, {x.seq, x.batch, x.heads, x.head_dim}), x.heads);
}

/// cuDNN's kernels write the operands' dtype: a partial result is rounded once, and then accumulated in the accumulate
/// dtype.
bool fused_forward(const QkvHeads& x, const AttentionOptions& options, AttentionResult& y) {
  if (has_dtype_of(y.out, x.q)) return FusedAttention::forward(x, options, y);
  AttentionResult low_precision{Tensor::like(x.q.base, y.out.shape()), y.lse};
  const bool done = FusedAttention::forward(x, options, low_precision);
  if (done) ops::copy(low_precision.out, y.out);
  return done;
}

bool fused_backward_unblocked(const Tensor& dout, const QkvHeads& x, const AttentionResult& y,
                              const AttentionOptions& options, QkvHeads& dx) {
  if (have_dtype_of(dx, x.q)) return FusedAttention::backward(dout, x, y, options, dx);
  QkvHeads low_precision{dense_like(x.q, dout), dense_like(x.k, dout), dense_like(x.v, dout)};
  if (!FusedAttention::backward(dout, x, y, options, low_precision)) return false;
  ops::copy_heads(low_precision.q, dx.q);
  ops::copy_heads(low_precision.k, dx.k);
  ops::copy_heads(low_precision.v, dx.v);
  return true;
}

bool fused_backward(const Tensor& dout, const QkvHeads& x, const AttentionResult& y, const AttentionOptions& options,
                    QkvHeads& dx) {
  const i64 rows = FusedAttention::backward_rows(x, dx, options);
  if (rows < x.q.seq) return attention_backward_by_blocks(dout, x, y, options, dx, rows, fused_backward_unblocked);
  return fused_backward_unblocked(dout, x, y, options, dx);
}

}  // namespace

template <>
void Kernels<DeviceType::Cuda>::attention(const QkvHeads& x, const AttentionOptions& options, AttentionResult& y) {
  if (!fused_forward(x, options, y)) TiledAttention::forward(x, options, y);
}

template <>
void Kernels<DeviceType::Cuda>::attention_backward(const Tensor& dout, const QkvHeads& x, const AttentionResult& y,
                                                   const AttentionOptions& options, QkvHeads& dx) {
  if (!fused_backward(dout, x, y, options, dx)) TiledAttention::backward(dout, x, y, options, dx);
}

}  // namespace mcpp
