#include "tensor/ops/low_precision/pack.h"

#include "tensor/on_device.h"
#include "tensor/ops/ops.h"

namespace mcpp::ops {
namespace {

void check_packed(const char* op, const Tensor& x, const Tensor& message) {
  const i64 count = x.numel();
  const DType type = message.dtype();
  MCPP_CHECK(is_float(x.dtype()) && (type == DType::BF16 || count % kPackedBlock == 0), op, ": cannot encode ", count,
             " values of ", name_of(x.dtype()));
  MCPP_CHECK((type == DType::I32 || type == DType::BF16) && message.numel() == message_elements(type, count), op,
             ": a message of ", message.numel(), " ", name_of(type), " does not match ", count, " values");
}

/// Allocates an fp32 tensor like x, for kernels that do not support its dtype.
Tensor to_fp32(const Tensor& x) {
  return Tensor::empty(x.shape(), DType::F32, x.device(), MemoryClass::Workspace);
}

void sum_in_fp64(const Tensor& messages, i64 each, Tensor& sum) {
  Tensor part = Tensor::empty(sum.shape(), DType::F64, sum.device(), MemoryClass::Workspace);
  unpack(messages.flat(0, each), sum);
  for (i64 begin = each; begin < messages.numel(); begin += each) {
    unpack(messages.flat(begin, each), part);
    add_to(part, sum);
  }
}

}  // namespace

void pack(const Tensor& x, Tensor& message) {
  check_packed("pack", x, message);
  if (message.dtype() == DType::BF16) return copy(x, message);
  if (x.dtype() == DType::F64) {
    Tensor rounded = to_fp32(x);
    copy(x, rounded);
    return pack(rounded, message);
  }
  on_device(x, [&]<DeviceType D>() { PackKernels<D>::pack(x, message); });
}

void unpack(const Tensor& message, Tensor& x) {
  check_packed("unpack", x, message);
  if (message.dtype() == DType::BF16) return copy(message, x);
  if (x.dtype() == DType::F64) {
    Tensor unpacked = to_fp32(x);
    unpack(message, unpacked);
    return copy(unpacked, x);
  }
  on_device(x, [&]<DeviceType D>() { PackKernels<D>::unpack(message, x); });
}

void sum_unpacked(const Tensor& messages, Tensor& sum) {
  MCPP_CHECK(!is_low_precision(sum.dtype()), "sum_unpacked: the sum must be fp32 or fp64, not ", name_of(sum.dtype()));
  const i64 each = message_elements(messages.dtype(), sum.numel()), count = each > 0 ? messages.numel() / each : 0;
  MCPP_CHECK(messages.numel() == count * each, "sum_unpacked: messages of ", messages.numel(), " ",
             name_of(messages.dtype()), " do not match ", sum.numel(), " values");
  if (count == 0) return fill_zero(sum);
  check_packed("sum_unpacked", sum, messages.flat(0, each));
  if (sum.dtype() == DType::F64) return sum_in_fp64(messages, each, sum);
  on_device(sum, [&]<DeviceType D>() {
    messages.dtype() == DType::BF16 ? PackKernels<D>::sum_rounded(messages, sum)
                                    : PackKernels<D>::sum_unpacked(messages, sum);
  });
}

}  // namespace mcpp::ops
