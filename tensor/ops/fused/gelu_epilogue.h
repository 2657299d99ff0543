// GEMMs fused with GELU or its gradient.
#pragma once
#include "tensor/ops/ops.h"

namespace mcpp {

namespace ops {

/// Computes u = x w^T + bias and y = gelu(u), in the tanh form. x [T, k], w [f, k], bias [f] (may be null), u and y [T,
/// f], all of one dtype. A GPU fuses both into one GEMM (GELU_AUX of cuBLASLt) and computes y from u before rounding.
/// It requires low-precision dtypes and rows aligned to 16 bytes, otherwise it throws an Internal error. A CPU runs
/// separate ops.
void matmul_gelu(const Tensor& x, const Tensor& w, const Tensor* bias, Tensor& u, Tensor& y);
/// Computes du = (dy w) gelu'(u) for dy [T, h], w [h, f], u and du [T, f]. Has the restrictions of matmul_gelu(). du
/// must not alias u.
void matmul_gelu_backward(const Tensor& dy, const Tensor& w, const Tensor& u, Tensor& du);

}  // namespace ops

/// Backend implementations, as in Kernels.
template <DeviceType D>
struct GeluEpilogue {
  static decltype(ops::matmul_gelu) forward;
  static decltype(ops::matmul_gelu_backward) backward;
};

}  // namespace mcpp
