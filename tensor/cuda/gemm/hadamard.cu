#include "tensor/cuda/launch.cuh"
#include "tensor/ops/low_precision/nvfp4.h"

namespace mcpp {
namespace {

constexpr int kThreads = 256, kBand = kNvfp4Block;

/// A thread transforms one column of a band of 16 rows, with additions in the order of the CPU.
__global__ void __launch_bounds__(kThreads)
    transform_bands(const __nv_bfloat16* x, u32 signs, __nv_bfloat16* y, i64 bands, i64 columns) {
  const i64 first = blockIdx.x * i64{blockDim.x} + threadIdx.x, step = i64{gridDim.x} * blockDim.x;
  for (i64 i = first; i < bands * columns; i += step) {
    const i64 start = i / columns * kBand * columns + i % columns;
    float v[kBand];
#pragma unroll
    for (int row = 0; row < kBand; ++row)
      v[row] = widen(x[start + row * columns]) * (signs >> row & 1 ? -0.25f : 0.25f);
#pragma unroll
    for (int half = 1; half < kBand; half *= 2) {
#pragma unroll
      for (int row = 0; row < kBand; ++row) {
        if (row & half) continue;
        const float a = v[row], b = v[row + half];
        v[row] = a + b, v[row + half] = a - b;
      }
    }
#pragma unroll
    for (int row = 0; row < kBand; ++row) y[start + row * columns] = narrow<__nv_bfloat16>(v[row]);
  }
}

}  // namespace

template <>
void Nvfp4Kernels<DeviceType::Cuda>::random_hadamard(const Tensor& x, u32 signs, Tensor& y) {
  const i64 bands = x.dim(0) / kBand, columns = x.dim(1), done = bands * kBand * columns;
  CudaDevice& device = cuda(x);
  if (done > 0)
    launch(transform_bands, grid_for(done / kBand, kThreads, device), kThreads, 0, device.stream(),
           elements<BFloat16>(x), signs, elements<BFloat16>(y), bands, columns);
  if (done == x.numel()) return;
  const auto bytes = static_cast<std::size_t>((x.numel() - done) * size_of(DType::BF16));
  check_cuda(cudaMemcpyAsync(elements<BFloat16>(y) + done, elements<BFloat16>(x) + done, bytes,
                             cudaMemcpyDeviceToDevice, device.stream()),
             "cudaMemcpyAsync");
}

}  // namespace mcpp
