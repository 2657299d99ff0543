#include "tensor/ops/fused/gelu_epilogue.h"

#include "tensor/cuda/gemm/cublas.h"

namespace mcpp {
namespace {

/// Alignment the library requires for GEMMs with a second output.
constexpr i64 kAlignment = 16;

template <class... Tensors>
i64 checked_alignment(const Tensor& x, i64 width, const Tensors&... all) {
  MCPP_CHECK(is_low_precision(x.dtype()), "GELU epilogues do not support ", name_of(x.dtype()));
  const i64 alignment = gemm_alignment(x.raw(), all.raw()...);
  MCPP_CHECK(alignment == kAlignment && width * size_of(x.dtype()) % kAlignment == 0,
             "GELU epilogues do not support tensors aligned to ", alignment, " bytes with rows of ", width);
  return alignment;
}

}  // namespace

template <>
void GeluEpilogue<DeviceType::Cuda>::forward(const Tensor& x, const Tensor& w, const Tensor* bias, Tensor& u,
                                             Tensor& y) {
  if (y.numel() == 0) return;
  const GemmKey key{.in = x.dtype(),
                    .out = y.dtype(),
                    .transpose_b = true,
                    .m = y.dim(0),
                    .n = y.dim(1),
                    .k = x.dim(1),
                    .alignment = checked_alignment(x, y.dim(1), w, u, y, bias ? *bias : y),
                    .epilogue = bias ? GemmEpilogue::BiasGelu : GemmEpilogue::Gelu};
  multiply(key, {.a = x.raw(), .b = w.raw(), .c = y.raw(), .bias = bias ? bias->raw() : nullptr, .aux = u.raw()},
           cuda(y));
}

template <>
void GeluEpilogue<DeviceType::Cuda>::backward(const Tensor& dy, const Tensor& w, const Tensor& u, Tensor& du) {
  if (du.numel() == 0) return;
  const GemmKey key{.in = dy.dtype(),
                    .out = du.dtype(),
                    .m = du.dim(0),
                    .n = du.dim(1),
                    .k = dy.dim(1),
                    .alignment = checked_alignment(dy, du.dim(1), w, u, du),
                    .epilogue = GemmEpilogue::GeluGradient};
  multiply(key, {.a = dy.raw(), .b = w.raw(), .c = du.raw(), .aux = u.raw()}, cuda(du));
}

}  // namespace mcpp
