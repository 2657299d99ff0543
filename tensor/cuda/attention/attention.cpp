#include "tensor/cuda/attention/attention.h"

#include "tensor/ops/kernels.h"

namespace mcpp {

template <>
void Kernels<DeviceType::Cuda>::attention(const QkvHeads& x, const AttentionOptions& options, AttentionResult& y) {
  if (!FusedAttention::forward(x, options, y)) TiledAttention::forward(x, options, y);
}

template <>
void Kernels<DeviceType::Cuda>::attention_backward(const Tensor& dout, const QkvHeads& x, const AttentionResult& y,
                                                   const AttentionOptions& options, QkvHeads& dx) {
  if (!FusedAttention::backward(dout, x, y, options, dx)) TiledAttention::backward(dout, x, y, options, dx);
}

}  // namespace mcpp
