#include "tensor/ops/low_rank.h"

#include "tensor/on_device.h"

namespace mcpp::ops {

void orthonormalize(Tensor& x) {
  MCPP_CHECK(x.shape().size() == 2 && x.dim(1) <= x.dim(0), "orthonormalize: columns of ", x.shape());
  MCPP_CHECK(x.dtype() == DType::F32 || x.dtype() == DType::F64, "orthonormalize: ", name_of(x.dtype()));
  on_device(x, [&]<DeviceType D>() { LowRankKernels<D>::orthonormalize(x); });
}

void copy_if_finite(const Tensor& from, Tensor& to, const Tensor& factor) {
  MCPP_CHECK(to.dtype() == DType::F32 || to.dtype() == DType::F64, "copy_if_finite: ", name_of(to.dtype()));
  MCPP_CHECK(from.dtype() == to.dtype() && from.numel() == to.numel(), "copy_if_finite: ", from.shape(), " to ",
             to.shape());
  MCPP_CHECK(factor.dtype() == DType::F64 && factor.numel() == 1, "copy_if_finite: factor ", factor.shape());
  on_device(to, [&]<DeviceType D>() { LowRankKernels<D>::copy_if_finite(from, to, factor); });
}

}  // namespace mcpp::ops
