#include <cmath>

#include "tensor/cuda/launch.cuh"
#include "tensor/ops/low_precision/quantize.h"

namespace mcpp {
namespace {

constexpr int kThreads = 256;
constexpr int kPerLane = kQuantizedBlock / kWarp;

/// Returns the number of ascending limits below x.
__device__ __forceinline__ int quantized_index(float x, const QuantizedValues& limits) {
  int index = 0;
  for (int half = 128; half > 0; half /= 2) index += x > limits[index + half - 1] ? half : 0;
  return index;
}

/// One warp per block of values.
__global__ void __launch_bounds__(kThreads)
    quantize_blocks(const float* x, u8* codes, float* scales, i64 blocks, QuantizedValues limits, int min_index) {
  const int lane = threadIdx.x % kWarp;
  const i64 step = i64{gridDim.x} * blockDim.x / kWarp;
  for (i64 b = (blockIdx.x * i64{blockDim.x} + threadIdx.x) / kWarp; b < blocks; b += step) {
    float values[kPerLane], largest = 0;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      values[i] = x[b * kQuantizedBlock + i * kWarp + lane];
      largest = fmaxf(largest, fabsf(values[i]));
    }
    const float magnitude = warp_max(largest), scale = magnitude < kMinScale ? 0 : magnitude;
    const float divisor = scale > 0 ? scale : INFINITY;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      const float value = __fdiv_rn(values[i], divisor);
      const int index = quantized_index(value, limits);
      codes[b * kQuantizedBlock + i * kWarp + lane] =
          static_cast<u8>(value > 0 && index < min_index ? min_index : index);
    }
    if (lane == 0) scales[b] = scale;
  }
}

__global__ void __launch_bounds__(kThreads)
    dequantize_blocks(const u8* codes, const float* scales, float* x, i64 count, QuantizedValues values) {
  const i64 first = blockIdx.x * i64{blockDim.x} + threadIdx.x, step = i64{gridDim.x} * blockDim.x;
  for (i64 i = first; i < count; i += step) x[i] = values[codes[i]] * scales[i / kQuantizedBlock];
}

}  // namespace

template <>
void QuantizeKernels<DeviceType::Cuda>::quantize(const Tensor& x, Quantized& to) {
  const i64 blocks = to.scales.numel();
  if (blocks == 0) return;
  CudaDevice& device = cuda(x);
  const int min_index = min_positive_code(to.range);
  launch(quantize_blocks, grid_for(blocks * kWarp, kThreads, device), kThreads, 0, device.stream(), x.data<float>(),
         static_cast<u8*>(to.codes.raw()), to.scales.data<float>(), blocks, quantized_limits(to.range), min_index);
}

template <>
void QuantizeKernels<DeviceType::Cuda>::dequantize(const Quantized& from, Tensor& x) {
  const i64 count = x.numel();
  if (count == 0) return;
  CudaDevice& device = cuda(x);
  launch(dequantize_blocks, grid_for(count, kThreads, device), kThreads, 0, device.stream(),
         static_cast<const u8*>(from.codes.raw()), from.scales.data<float>(), x.data<float>(), count,
         quantized_values(from.range));
}

}  // namespace mcpp
