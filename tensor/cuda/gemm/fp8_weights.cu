#include "tensor/cuda/gemm/fp8_code.cuh"
#include "tensor/cuda/launch.cuh"
#include "tensor/ops/low_precision/fp8_weights.h"

namespace mcpp {
namespace {

constexpr int kThreads = 256;
constexpr int kPerLane = kPackedBlock / kWarp;

/// One warp per group. Bits of non-negative floats are ordered like the floats.
__global__ void __launch_bounds__(kThreads)
    add_group_amax(const __nv_bfloat16* x, i64 groups, const WeightRange range, float* amax) {
  const int lane = threadIdx.x % kWarp;
  const i64 step = i64{gridDim.x} * blockDim.x / kWarp;
  for (i64 g = (blockIdx.x * i64{blockDim.x} + threadIdx.x) / kWarp; g < groups; g += step) {
    int largest = 0;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i)
      largest = max(largest, __float_as_int(fabsf(widen(x[g * kPackedBlock + i * kWarp + lane]))));
    for (int offset = kWarp / 2; offset > 0; offset /= 2) largest = max(largest, __shfl_xor_sync(~0u, largest, offset));
    if (lane == 0) atomicMax(reinterpret_cast<int*>(amax + range.block_of(g)), min(largest, 0x7F800000));
  }
}

__global__ void __launch_bounds__(kThreads)
    pack_groups(const __nv_bfloat16* x, i64 groups, const WeightRange range, const float* amax, i32* message) {
  const int lane = threadIdx.x % kWarp;
  const i64 step = i64{gridDim.x} * blockDim.x / kWarp;
  for (i64 g = (blockIdx.x * i64{blockDim.x} + threadIdx.x) / kWarp; g < groups; g += step) {
    const float scale = fp8_scale(Fp8Format::E4M3, amax[range.block_of(g)]);
    i32* words = message + g * kPackedWords;
    u8* codes = reinterpret_cast<u8*>(words + 1);
#pragma unroll
    for (int i = 0; i < kPerLane; ++i)
      codes[i * kWarp + lane] =
          to_fp8_code(__fmul_rn(widen(x[g * kPackedBlock + i * kWarp + lane]), scale), Fp8Format::E4M3);
    if (lane == 0) words[0] = __float_as_int(__fdiv_rn(1, scale));
  }
}

__global__ void __launch_bounds__(kThreads) unpack_groups(const i32* message, __nv_bfloat16* x, i64 count) {
  const i64 first = blockIdx.x * i64{blockDim.x} + threadIdx.x, step = i64{gridDim.x} * blockDim.x;
  for (i64 i = first; i < count; i += step) {
    const i32* words = message + i / kPackedBlock * kPackedWords;
    const u8 code = reinterpret_cast<const u8*>(words + 1)[i % kPackedBlock];
    x[i] = narrow<__nv_bfloat16>(__fmul_rn(from_fp8_code(code, Fp8Format::E4M3), __int_as_float(words[0])));
  }
}

}  // namespace

template <>
void Fp8WeightKernels<DeviceType::Cuda>::add_amax(const Tensor& x, const WeightRange& range, Tensor& amax) {
  const i64 groups = x.numel() / kPackedBlock;
  if (groups == 0) return;
  CudaDevice& device = cuda(x);
  launch(add_group_amax, grid_for(groups * kWarp, kThreads, device), kThreads, 0, device.stream(),
         elements<BFloat16>(x), groups, range, amax.data<float>());
}

template <>
void Fp8WeightKernels<DeviceType::Cuda>::pack(const Tensor& x, const WeightRange& range, const Tensor& amax,
                                              Tensor& message) {
  const i64 groups = x.numel() / kPackedBlock;
  if (groups == 0) return;
  CudaDevice& device = cuda(x);
  launch(pack_groups, grid_for(groups * kWarp, kThreads, device), kThreads, 0, device.stream(), elements<BFloat16>(x),
         groups, range, amax.data<float>(), message.data<i32>());
}

template <>
void Fp8WeightKernels<DeviceType::Cuda>::unpack(const Tensor& message, Tensor& x) {
  if (x.numel() == 0) return;
  CudaDevice& device = cuda(x);
  launch(unpack_groups, grid_for(x.numel(), kThreads, device), kThreads, 0, device.stream(), message.data<i32>(),
         elements<BFloat16>(x), x.numel());
}

}  // namespace mcpp
