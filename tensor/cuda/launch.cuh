// Common building blocks of kernels: element types, 16-byte accesses, sums over a warp or a block, and grid sizes.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <bit>

#include "tensor/cuda/device.h"
#include "tensor/cuda/launch_kernel.cuh"
#include "tensor/dtype.h"

namespace mcpp {

/// CUDA's type of an element: BFloat16 maps to __nv_bfloat16 and Float16 to __half, which are bitwise identical.
template <class T>
struct CudaType {
  using type = T;
};
template <>
struct CudaType<BFloat16> {
  using type = __nv_bfloat16;
};
template <>
struct CudaType<Float16> {
  using type = __half;
};
template <class T>
using Element = typename CudaType<T>::type;

/// Returns the elements of a tensor in the kernels' type.
template <class T>
Element<T>* elements(const Tensor& t) {
  return reinterpret_cast<Element<T>*>(t.data<T>());
}

/// True for CUDA's low-precision types.
template <class E>
inline constexpr bool kIsLowPrecisionElement = std::is_same_v<E, __nv_bfloat16> || std::is_same_v<E, __half>;

template <class T>
__device__ __forceinline__ auto widen(T x) {
  if constexpr (std::is_same_v<T, __nv_bfloat16>)
    return __bfloat162float(x);
  else if constexpr (std::is_same_v<T, __half>)
    return __half2float(x);
  else
    return x;
}
/// Rounds to nearest even.
template <class T, class W>
__device__ __forceinline__ T narrow(W x) {
  if constexpr (std::is_same_v<T, __nv_bfloat16>)
    return __float2bfloat16_rn(static_cast<float>(x));
  else if constexpr (std::is_same_v<T, __half>)
    return __float2half_rn(static_cast<float>(x));
  else
    return static_cast<T>(x);
}

/// N adjacent elements, a power of two, accessed by one instruction. Accesses of 16 bytes per thread are fastest.
/// Kernels whose input and output types differ use smaller packs, and N = 1 is used for unaligned rows.
template <class T, int N = static_cast<int>(16 / sizeof(T))>
struct alignas(N * sizeof(T)) Pack {
  static_assert(N * sizeof(T) <= 16);
  static constexpr int kCount = N;
  T values[N];
};
/// Machine type used to move a pack.
template <std::size_t kBytes>
using PackBits = std::conditional_t<kBytes == 16, uint4,
                                    std::conditional_t<kBytes == 8, uint2, std::conditional_t<kBytes == 4, u32, u16>>>;

template <class T, int N = Pack<T>::kCount>
__device__ __forceinline__ Pack<T, N> load_pack(const T* from) {
  return std::bit_cast<Pack<T, N>>(load_vector<PackBits<sizeof(Pack<T, N>)>>(from));
}
/// Loads a pack with only N given explicitly.
template <int N, class T>
__device__ __forceinline__ Pack<T, N> load_pack(const T* from) {
  return load_pack<T, N>(from);
}
template <class T, int N>
__device__ __forceinline__ void store_pack(T* to, const Pack<T, N>& pack) {
  store_vector(to, std::bit_cast<PackBits<sizeof(pack)>>(pack));
}
/// Returns true if N elements at `p`, and at p plus any multiple of N, can be accessed as a pack.
template <int N, class T>
bool is_pack_aligned(const T* p) {
  return reinterpret_cast<std::uintptr_t>(p) % sizeof(Pack<T, N>) == 0;
}
/// Returns true if rows of n elements, and the pointers, allow 16-byte accesses.
template <class T, class... Pointers>
bool is_packable(i64 n, const T* first, const Pointers*... more) {
  const auto aligned = [](const void* p) { return reinterpret_cast<std::uintptr_t>(p) % 16 == 0; };
  return n % Pack<T>::kCount == 0 && aligned(first) && (aligned(more) && ...);
}

constexpr int kWarp = 32;

template <class W>
__device__ __forceinline__ W warp_sum(W x) {
  for (int offset = kWarp / 2; offset > 0; offset /= 2) x += __shfl_xor_sync(~0u, x, offset);
  return x;
}
template <class W>
__device__ __forceinline__ W warp_max(W x) {
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    const W other = __shfl_xor_sync(~0u, x, offset);
    x = other > x || other != other ? other : x;  // NaN propagates
  }
  return x;
}

/// Returns on every thread the sum over all threads of a block of full warps, in a fixed order. Contains barriers.
template <class W>
__device__ W block_sum(W x) {
  MCPP_SHARED(W[kWarp], partial);
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  x = warp_sum(x);
  __syncthreads();  // for readers of an earlier call
  if (lane == 0) partial[warp] = x;
  __syncthreads();
  const int warps = (blockDim.x + kWarp - 1) / kWarp;
  return warp_sum(lane < warps ? partial[lane] : W{0});
}
template <class W>
__device__ W block_max(W x) {
  MCPP_SHARED(W[kWarp], partial);
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  x = warp_max(x);
  __syncthreads();
  if (lane == 0) partial[warp] = x;
  __syncthreads();
  const int warps = (blockDim.x + kWarp - 1) / kWarp;
  return warp_max(lane < warps ? partial[lane] : partial[0]);
}

/// Returns the number of blocks of `threads` for `items`, one thread each, capped so that a grid-stride loop fills the
/// GPU a few times.
inline int grid_for(i64 items, int threads, const CudaDevice& device, int waves = 8) {
  const i64 needed = (items + threads - 1) / threads;
  const i64 max_blocks = i64{device.multiprocessors()} * (2048 / threads) * waves;
  return static_cast<int>(std::max<i64>(1, std::min(needed, max_blocks)));
}

}  // namespace mcpp
