#include "tensor/ops/low_precision/param_remainders.h"

#include "tensor/on_device.h"

namespace mcpp::ops {
namespace {

void check_remainders(const char* op, const Tensor& master, const ParamRemainders& r) {
  const i64 count = master.numel();
  MCPP_CHECK(master.dtype() == DType::F32 && count % kRemainderBlock == 0, op, ": unsupported master weights: ", count,
             " values of ", name_of(master.dtype()));
  MCPP_CHECK(r.low.dtype() == DType::I32 && r.low.numel() == count / 2, op, ": low must be int32 with ", count / 2,
             " elements, not ", r.low.shape());
  MCPP_CHECK(r.rounded_up.dtype() == DType::I32 && r.rounded_up.numel() == count / 32, op,
             ": rounded_up must be int32 with ", count / 32, " elements, not ", r.rounded_up.shape());
}

}  // namespace

void param_remainders(const Tensor& master, ParamRemainders& to) {
  check_remainders("param_remainders", master, to);
  on_device(master, [&]<DeviceType D>() { ParamRemainderKernels<D>::param_remainders(master, to); });
}

void join_param_remainders(const Tensor& model, const ParamRemainders& from, Tensor& master) {
  check_remainders("join_param_remainders", master, from);
  MCPP_CHECK(model.dtype() == DType::BF16 && model.numel() == master.numel(), "join_param_remainders: ", model.numel(),
             " model weights of ", name_of(model.dtype()), " do not match ", master.numel(), " master weights");
  on_device(master, [&]<DeviceType D>() { ParamRemainderKernels<D>::join_param_remainders(model, from, master); });
}

}  // namespace mcpp::ops
