#include "tensor/ops/low_precision/quantize.h"

#include "tensor/on_device.h"

namespace mcpp::ops {
namespace {

void check_quantized(const char* op, const Tensor& x, const Quantized& q) {
  const i64 count = x.numel();
  MCPP_CHECK(x.dtype() == DType::F32 && count % kQuantizedBlock == 0, op, ": ", count, " values of ",
             name_of(x.dtype()));
  MCPP_CHECK(q.codes.dtype() == DType::I32 && q.codes.bytes() == count, op, ": codes ", q.codes.shape());
  MCPP_CHECK(q.scales.dtype() == DType::F32 && q.scales.numel() == count / kQuantizedBlock, op, ": scales ",
             q.scales.shape());
}

}  // namespace

void quantize(const Tensor& x, Quantized& to) {
  check_quantized("quantize", x, to);
  on_device(x, [&]<DeviceType D>() { QuantizeKernels<D>::quantize(x, to); });
}

void dequantize(const Quantized& from, Tensor& x) {
  check_quantized("dequantize", x, from);
  on_device(x, [&]<DeviceType D>() { QuantizeKernels<D>::dequantize(from, x); });
}

}  // namespace mcpp::ops
