// Matrix products with the GELU of what they give, or with its gradient.
#pragma once
#include "tensor/ops/ops.h"

namespace mcpp {

namespace ops {

/// u = x w^T + bias and y = gelu(u), in the tanh form. x [T, k], w [f, k], bias [f] (may be null), u and y [T, f], all
/// of one type. A GPU does it in one product (GELU_AUX of cuBLASLt) for narrow types and tensors whose rows begin at
/// multiples of 16 bytes, an Internal error for others; its y is of u before that was rounded. A CPU does one thing
/// after another.
void matmul_gelu(const Tensor& x, const Tensor& w, const Tensor* bias, Tensor& u, Tensor& y);
/// du = (dy w) gelu'(u), with dy [T, h], w [h, f], u and du [T, f], on the same terms. du may not be u.
void matmul_gelu_backward(const Tensor& dy, const Tensor& w, const Tensor& u, Tensor& du);

}  // namespace ops

/// As Kernels.
template <DeviceType D>
struct GeluEpilogue {
  static decltype(ops::matmul_gelu) forward;
  static decltype(ops::matmul_gelu_backward) backward;
};

}  // namespace mcpp
