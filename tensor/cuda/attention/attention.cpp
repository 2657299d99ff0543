#include "tensor/cuda/attention/attention.h"

#include "tensor/ops/kernels.h"

namespace mcpp {

template <>
void Kernels<DeviceType::Cuda>::attention(const Heads& q, const Heads& k, const Heads& v,
                                          const AttentionOptions& options, Tensor& out, Tensor& lse) {
  if (!FusedAttention::forward(q, k, v, options, out, lse)) TiledAttention::forward(q, k, v, options, out, lse);
}

template <>
void Kernels<DeviceType::Cuda>::attention_backward(const Tensor& dout, const Heads& q, const Heads& k, const Heads& v,
                                                   const Tensor& out, const Tensor& lse,
                                                   const AttentionOptions& options, Heads& dq, Heads& dk, Heads& dv) {
  if (!FusedAttention::backward(dout, q, k, v, out, lse, options, dq, dk, dv))
    TiledAttention::backward(dout, q, k, v, out, lse, options, dq, dk, dv);
}

}  // namespace mcpp
