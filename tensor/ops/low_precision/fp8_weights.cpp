#include "tensor/ops/low_precision/fp8_weights.h"

#include "tensor/on_device.h"

namespace mcpp::ops {
namespace {

void check_range(const char* op, const Tensor& x, const WeightRange& range, const Tensor& amax) {
  MCPP_CHECK(x.dtype() == DType::BF16 && x.numel() % kPackedBlock == 0 && range.first % kPackedBlock == 0, op,
             ": cannot encode ", x.numel(), " elements of ", name_of(x.dtype()), " from element ", range.first);
  MCPP_CHECK(range.blocks.can_pack(), op, ": rows of ", range.blocks.columns, " elements straddle groups of ",
             kPackedBlock);
  MCPP_CHECK(amax.dtype() == DType::F32 && amax.numel() == range.blocks.count(range.numel), op, ": amax of ",
             amax.numel(), " blocks instead of ", range.blocks.count(range.numel));
}

void check_message(const char* op, const Tensor& x, const Tensor& message) {
  MCPP_CHECK(x.dtype() == DType::BF16 && message.dtype() == DType::I32 && message.numel() == packed_words(x.numel()),
             op, ": a message of ", message.numel(), " ", name_of(message.dtype()), " does not match ", x.numel(),
             " elements of ", name_of(x.dtype()));
}

}  // namespace

void add_weight_amax(const Tensor& x, const WeightRange& range, Tensor& amax) {
  check_range("add_weight_amax", x, range, amax);
  on_device(x, [&]<DeviceType D>() { Fp8WeightKernels<D>::add_amax(x, range, amax); });
}

void pack_fp8_weights(const Tensor& x, const WeightRange& range, const Tensor& amax, Tensor& message) {
  check_range("pack_fp8_weights", x, range, amax);
  check_message("pack_fp8_weights", x, message);
  on_device(x, [&]<DeviceType D>() { Fp8WeightKernels<D>::pack(x, range, amax, message); });
}

void unpack_fp8_weights(const Tensor& message, Tensor& x) {
  check_message("unpack_fp8_weights", x, message);
  on_device(x, [&]<DeviceType D>() { Fp8WeightKernels<D>::unpack(message, x); });
}

}  // namespace mcpp::ops
