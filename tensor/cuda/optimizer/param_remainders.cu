#include "tensor/cuda/launch.cuh"
#include "tensor/ops/low_precision/param_remainders.h"

namespace mcpp {
namespace {

constexpr int kThreads = 256;

/// One warp per word of bits; `count` is a multiple of the warp size.
__global__ void __launch_bounds__(kThreads) remainders_of(const u32* master, u16* low, u32* rounded_up, i64 count) {
  const i64 first = blockIdx.x * i64{blockDim.x} + threadIdx.x, step = i64{gridDim.x} * blockDim.x;
  for (i64 i = first; i < count; i += step) {
    const u32 x = master[i], lower = x & 0xFFFF;
    low[i] = static_cast<u16>(lower);
    const u32 bits = __ballot_sync(0xFFFFFFFF, lower + (x >> 16 & 1) > 0x8000);
    if (i % kWarp == 0) rounded_up[i / kWarp] = bits;
  }
}

__global__ void __launch_bounds__(kThreads)
    join_remainders(const u16* model, const u16* low, const u32* rounded_up, u32* master, i64 count) {
  const i64 first = blockIdx.x * i64{blockDim.x} + threadIdx.x, step = i64{gridDim.x} * blockDim.x;
  for (i64 i = first; i < count; i += step) {
    const u32 upper = model[i] - (rounded_up[i / kWarp] >> (i % kWarp) & 1);
    master[i] = upper << 16 | low[i];
  }
}

}  // namespace

template <>
void ParamRemainderKernels<DeviceType::Cuda>::param_remainders(const Tensor& master, ParamRemainders& to) {
  const i64 count = master.numel();
  if (count == 0) return;
  CudaDevice& device = cuda(master);
  launch(remainders_of, grid_for(count, kThreads, device), kThreads, 0, device.stream(),
         static_cast<const u32*>(master.raw()), static_cast<u16*>(to.low.raw()), static_cast<u32*>(to.rounded_up.raw()),
         count);
}

template <>
void ParamRemainderKernels<DeviceType::Cuda>::join_param_remainders(const Tensor& model, const ParamRemainders& from,
                                                                    Tensor& master) {
  const i64 count = master.numel();
  if (count == 0) return;
  CudaDevice& device = cuda(master);
  launch(join_remainders, grid_for(count, kThreads, device), kThreads, 0, device.stream(),
         static_cast<const u16*>(model.raw()), static_cast<const u16*>(from.low.raw()),
         static_cast<const u32*>(from.rounded_up.raw()), static_cast<u32*>(master.raw()), count);
}

}  // namespace mcpp
