#include "tensor/ops/z_loss.h"

#include "tensor/dtype.h"
#include "tensor/on_device.h"

namespace mcpp::ops {

void z_loss(Tensor& lse, const Tensor& targets, double coeff, Tensor& total) {
  MCPP_CHECK((lse.dtype() == DType::F32 || lse.dtype() == DType::F64) && targets.dtype() == DType::I32 &&
                 targets.numel() == lse.numel(),
             "z_loss: lse ", lse.shape(), " in ", name_of(lse.dtype()), " and targets ", targets.shape(), " in ",
             name_of(targets.dtype()), " do not match");
  MCPP_CHECK(total.dtype() == DType::F64 && total.numel() == 1, "z_loss: total must be fp64 with one element");
  on_device(lse, [&]<DeviceType D>() { ZLossKernels<D>::z_loss(lse, targets, coeff, total); });
}

}  // namespace mcpp::ops
