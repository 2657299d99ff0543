// Grouped GEMMs: one cuBLASLt call per group, all with the same algorithm.
#include "tensor/cuda/gemm/cublas.h"
#include "tensor/ops/groups.h"
#include "tensor/ops/kernels.h"

namespace mcpp {
namespace {

/// Returns row `row` of matrices with `columns` columns, or matrix `row` of matrices with `columns` elements.
std::byte* at(const Tensor& t, i64 row, i64 columns) {
  return static_cast<std::byte*>(t.raw()) + row * columns * size_of(t.dtype());
}

/// Returns the alignment common to the operands of all groups, so that results do not depend on the position of a
/// group.
i64 common_alignment(const Tensor& a, const Tensor& b, const Tensor& c) {
  i64 alignment = gemm_alignment(a.raw(), b.raw(), c.raw());
  for (const Tensor* t : {&a, &b, &c}) {
    while (t->dim(-1) * size_of(t->dtype()) % alignment != 0) alignment /= 2;
  }
  return alignment;
}

bool rounds_to_tf32(const Tensor& x, CudaDevice& device) {
  return device.cublas().allow_tf32 && x.dtype() == DType::F32;
}

}  // namespace

template <>
void Kernels<DeviceType::Cuda>::grouped_matmul(const Tensor& x, const Tensor& weights, std::span<const i64> rows,
                                               Tensor& y, bool transpose_weights) {
  if (y.numel() == 0) return;
  if (x.dim(1) == 0) return fill_zero(y);
  CudaDevice& device = cuda(y);
  const i64 n = y.dim(1), k = x.dim(1);
  const GemmKey key{.in = x.dtype(),
                    .out = y.dtype(),
                    .tf32 = rounds_to_tf32(x, device),
                    .transpose_b = transpose_weights,
                    .n = n,
                    .k = k,
                    .alignment = common_alignment(x, weights, y)};
  for_each_group(rows, [&](i64 g, i64 first, i64 count) {
    if (count > 0) multiply_group(key, count, {at(x, first, k), at(weights, g, n * k), at(y, first, n)}, device);
  });
}

template <>
void Kernels<DeviceType::Cuda>::grouped_weight_gradient(const Tensor& dy, const Tensor& x, std::span<const i64> rows,
                                                        Tensor& dw, float beta) {
  if (dw.numel() == 0) return;
  CudaDevice& device = cuda(dw);
  const i64 n = dy.dim(1), k = x.dim(1);
  const GemmKey key{.in = x.dtype(),
                    .out = dw.dtype(),
                    .tf32 = rounds_to_tf32(x, device),
                    .transpose_a = true,
                    .accumulate = beta != 0,
                    .m = n,
                    .n = k,
                    .alignment = common_alignment(dy, x, dw)};
  for_each_group(rows, [&](i64 g, i64 first, i64 count) {
    if (count > 0) {
      multiply_group(key, count, {at(dy, first, n), at(x, first, k), at(dw, g, n * k)}, device);
    } else if (beta == 0) {
      Tensor none = dw.slice(g, g + 1);
      fill_zero(none);
    }
  });
}

}  // namespace mcpp
