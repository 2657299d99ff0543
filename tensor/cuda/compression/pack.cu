#include "tensor/cuda/launch.cuh"
#include "tensor/ops/low_precision/pack.h"
#include "tensor/ops/low_precision/quantize.h"

namespace mcpp {
namespace {

constexpr int kThreads = 256;
constexpr int kPerLane = kPackedBlock / kWarp;

/// Returns on every lane the bits of the largest magnitude of a warp's values; non-finite values have the largest bits.
__device__ __forceinline__ int largest_magnitude(const float (&values)[kPerLane]) {
  int largest = 0;
#pragma unroll
  for (const float value : values) largest = max(largest, __float_as_int(fabsf(value)));
  for (int offset = kWarp / 2; offset > 0; offset /= 2) largest = max(largest, __shfl_xor_sync(~0u, largest, offset));
  return largest;
}

/// One warp per block of values.
template <class E>
__global__ void __launch_bounds__(kThreads) pack_blocks(const E* x, i32* message, i64 blocks) {
  const int lane = threadIdx.x % kWarp;
  const i64 step = i64{gridDim.x} * blockDim.x / kWarp;
  for (i64 b = (blockIdx.x * i64{blockDim.x} + threadIdx.x) / kWarp; b < blocks; b += step) {
    float values[kPerLane];
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) values[i] = widen(x[b * kPackedBlock + i * kWarp + lane]);
    const int magnitude_bits = largest_magnitude(values);
    const float magnitude = __int_as_float(magnitude_bits);
    const bool is_finite = magnitude_bits < 0x7F800000, is_zero = !is_finite || magnitude < kMinScale;
    const float steps = is_zero ? 0 : __fdiv_rn(127.0F, magnitude);
    i32* words = message + b * kPackedWords;
    signed char* codes = reinterpret_cast<signed char*>(words + 1);
#pragma unroll
    for (int i = 0; i < kPerLane; ++i)
      codes[i * kWarp + lane] = static_cast<signed char>(is_zero ? 0 : __float2int_rn(__fmul_rn(values[i], steps)));
    const float scale = is_zero ? 0 : __fdiv_rn(magnitude, 127.0F);
    if (lane == 0) words[0] = is_finite ? __float_as_int(scale) : 0x7FC00000;
  }
}

/// Returns value i of a message.
__device__ __forceinline__ float unpacked(const i32* message, i64 i) {
  const i32* words = message + i / kPackedBlock * kPackedWords;
  const signed char* codes = reinterpret_cast<const signed char*>(words + 1);
  return __fmul_rn(static_cast<float>(codes[i % kPackedBlock]), __int_as_float(words[0]));
}

template <class E>
__global__ void __launch_bounds__(kThreads) unpack_blocks(const i32* message, E* x, i64 count) {
  const i64 first = blockIdx.x * i64{blockDim.x} + threadIdx.x, step = i64{gridDim.x} * blockDim.x;
  for (i64 i = first; i < count; i += step) x[i] = narrow<E>(unpacked(message, i));
}

/// Sums at least one message, each of `words` words.
__global__ void __launch_bounds__(kThreads)
    sum_blocks(const i32* messages, i64 num_messages, i64 words, float* sum, i64 count) {
  const i64 first = blockIdx.x * i64{blockDim.x} + threadIdx.x, step = i64{gridDim.x} * blockDim.x;
  for (i64 i = first; i < count; i += step) {
    float total = unpacked(messages, i);
    for (i64 m = 1; m < num_messages; ++m) total = __fadd_rn(total, unpacked(messages + m * words, i));
    sum[i] = total;
  }
}

using Rounded = Pack<__nv_bfloat16>;
constexpr int kHalf = Rounded::kCount / 2;  // elements of each of the two packs of sums

/// Adds the values of pack p of at least one message, in the order of messages.
__device__ __forceinline__ void sum_pack(const __nv_bfloat16* messages, i64 num_messages, i64 count, i64 p,
                                         float* sum) {
  float total[Rounded::kCount];
  for (i64 m = 0; m < num_messages; ++m) {
    const Rounded more = load_pack(messages + m * count + p * Rounded::kCount);
#pragma unroll
    for (int k = 0; k < Rounded::kCount; ++k)
      total[k] = m == 0 ? widen(more.values[k]) : __fadd_rn(total[k], widen(more.values[k]));
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    Pack<float> sums;
#pragma unroll
    for (int k = 0; k < kHalf; ++k) sums.values[k] = total[half * kHalf + k];
    store_pack(sum + p * Rounded::kCount + half * kHalf, sums);
  }
}

/// Processes 16 bytes of each message at a time for `packs` packs, then single elements.
__global__ void __launch_bounds__(kThreads)
    sum_bf16_messages(const __nv_bfloat16* messages, i64 num_messages, float* sum, i64 count, i64 packs) {
  const i64 first = blockIdx.x * i64{blockDim.x} + threadIdx.x, step = i64{gridDim.x} * blockDim.x;
  for (i64 p = first; p < packs; p += step) sum_pack(messages, num_messages, count, p, sum);
  for (i64 i = packs * Rounded::kCount + first; i < count; i += step) {
    float total = widen(messages[i]);
    for (i64 m = 1; m < num_messages; ++m) total = __fadd_rn(total, widen(messages[m * count + i]));
    sum[i] = total;
  }
}

template <class T>
void launch_unpack(const Tensor& message, Tensor& x) {
  const i64 count = x.numel();
  if (count == 0) return;
  CudaDevice& device = cuda(x);
  launch(unpack_blocks<Element<T>>, grid_for(count, kThreads, device), kThreads, 0, device.stream(),
         message.data<i32>(), elements<T>(x), count);
}

}  // namespace

template <>
void PackKernels<DeviceType::Cuda>::pack(const Tensor& x, Tensor& message) {
  const i64 blocks = x.numel() / kPackedBlock;
  if (blocks == 0) return;
  CudaDevice& device = cuda(x);
  on_float(x.dtype(), [&]<class T>() {
    if constexpr (!std::is_same_v<T, double>)
      launch(pack_blocks<Element<T>>, grid_for(blocks * kWarp, kThreads, device), kThreads, 0, device.stream(),
             elements<T>(x), message.data<i32>(), blocks);
  });
}

template <>
void PackKernels<DeviceType::Cuda>::unpack(const Tensor& message, Tensor& x) {
  on_float(x.dtype(), [&]<class T>() {
    if constexpr (!std::is_same_v<T, double>) launch_unpack<T>(message, x);
  });
}

template <>
void PackKernels<DeviceType::Cuda>::sum_unpacked(const Tensor& messages, Tensor& sum) {
  const i64 count = sum.numel(), words = packed_words(count);
  CudaDevice& device = cuda(sum);
  launch(sum_blocks, grid_for(count, kThreads, device), kThreads, 0, device.stream(), messages.data<i32>(),
         messages.numel() / words, words, sum.data<float>(), count);
}

template <>
void PackKernels<DeviceType::Cuda>::sum_rounded(const Tensor& messages, Tensor& sum) {
  const i64 count = sum.numel();
  const __nv_bfloat16* from = elements<BFloat16>(messages);
  float* to = sum.data<float>();
  const i64 packs = is_packable(count, from, static_cast<const float*>(to)) ? count / Rounded::kCount : 0;
  CudaDevice& device = cuda(sum);
  launch(sum_bf16_messages, grid_for(packs > 0 ? packs : count, kThreads, device), kThreads, 0, device.stream(), from,
         messages.numel() / count, to, count, packs);
}

}  // namespace mcpp
