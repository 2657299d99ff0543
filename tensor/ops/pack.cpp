#include "tensor/ops/pack.h"

#include "tensor/on_device.h"
#include "tensor/ops/ops.h"

namespace mcpp::ops {
namespace {

void check_packed(const char* op, const Tensor& x, const Tensor& message) {
  const i64 count = x.numel();
  MCPP_CHECK(is_float(x.dtype()) && count % kPackedBlock == 0, op, ": ", count, " numbers of ", name_of(x.dtype()));
  MCPP_CHECK(message.dtype() == DType::I32 && message.numel() == packed_words(count), op, ": a message of ",
             message.numel(), " ", name_of(message.dtype()), " for ", count, " numbers");
}

/// Room for x in the type in which kernels work where they do not know its own.
Tensor in_fp32(const Tensor& x) {
  return Tensor::empty(x.shape(), DType::F32, x.device(), MemoryClass::Workspace);
}

}  // namespace

void pack(const Tensor& x, Tensor& message) {
  check_packed("pack", x, message);
  if (x.dtype() == DType::F64) {
    Tensor rounded = in_fp32(x);
    copy(x, rounded);
    return pack(rounded, message);
  }
  on_device(x, [&]<DeviceType D>() { PackKernels<D>::pack(x, message); });
}

void unpack(const Tensor& message, Tensor& x) {
  check_packed("unpack", x, message);
  if (x.dtype() == DType::F64) {
    Tensor narrow = in_fp32(x);
    unpack(message, narrow);
    return copy(narrow, x);
  }
  on_device(x, [&]<DeviceType D>() { PackKernels<D>::unpack(message, x); });
}

void add_unpacked(const Tensor& message, Tensor& sum) {
  check_packed("add_unpacked", sum, message);
  MCPP_CHECK(!is_narrow(sum.dtype()), "add_unpacked: a sum in ", name_of(sum.dtype()));
  if (sum.dtype() == DType::F64) {
    Tensor part = Tensor::empty(sum.shape(), DType::F64, sum.device(), MemoryClass::Workspace);
    unpack(message, part);
    return add_to(part, sum);
  }
  on_device(sum, [&]<DeviceType D>() { PackKernels<D>::add_unpacked(message, sum); });
}

}  // namespace mcpp::ops
