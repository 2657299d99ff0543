#include "tensor/ops/low_rank.h"

#include "tensor/on_device.h"

namespace mcpp::ops {

void orthonormalize(Tensor& x) {
  MCPP_CHECK(x.shape().size() == 2 && x.dim(1) <= x.dim(0), "orthonormalize: x must be [n, r] with r <= n, not ",
             x.shape());
  MCPP_CHECK(x.dtype() == DType::F32 || x.dtype() == DType::F64, "orthonormalize: x must be fp32 or fp64, not ",
             name_of(x.dtype()));
  on_device(x, [&]<DeviceType D>() { LowRankKernels<D>::orthonormalize(x); });
}

void copy_if_finite(const Tensor& from, Tensor& to, const Tensor& factor) {
  MCPP_CHECK(to.dtype() == DType::F32 || to.dtype() == DType::F64, "copy_if_finite: tensors must be fp32 or fp64, not ",
             name_of(to.dtype()));
  MCPP_CHECK(from.dtype() == to.dtype() && from.numel() == to.numel(), "copy_if_finite: tensors ", from.shape(),
             " and ", to.shape(), " do not match");
  MCPP_CHECK(factor.dtype() == DType::F64 && factor.numel() == 1, "copy_if_finite: factor must be fp64 [1], not ",
             factor.shape());
  on_device(to, [&]<DeviceType D>() { LowRankKernels<D>::copy_if_finite(from, to, factor); });
}

}  // namespace mcpp::ops
