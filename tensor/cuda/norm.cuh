// What the forward and backward kernels of LayerNorm and RMSNorm share: rows are spread over a warp or a block.
#pragma once
#include "tensor/cuda/rows.cuh"

namespace mcpp {

/// The sum over all threads that share a row: a warp of a block of several, or the whole block.
template <class W>
__device__ __forceinline__ W row_sum(W x) {
  return blockDim.x == kWarp ? warp_sum(x) : block_sum(x);
}

/// Two sums for the barriers of one.
template <class W>
struct Two {
  W first = 0, second = 0;
};
template <class W>
__device__ __forceinline__ Two<W> row_sum(Two<W> x) {
  x = {warp_sum(x.first), warp_sum(x.second)};
  if (blockDim.x == kWarp) return x;
  __shared__ W partial[2][kWarp];
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, warps = blockDim.x / kWarp;
  __syncthreads();  // of an earlier call's readers
  if (lane == 0) partial[0][warp] = x.first, partial[1][warp] = x.second;
  __syncthreads();
  const bool is_used = lane < warps;
  return {warp_sum(is_used ? partial[0][lane] : W{0}), warp_sum(is_used ? partial[1][lane] : W{0})};
}

/// More would leave a thread too few registers for what it holds of a row.
constexpr int kMostRowThreads = 512;

/// Threads, whole warps, that hold a row of `units` units when each holds `held` of them.
inline i64 row_threads(i64 units, int held) {
  return ((units + held - 1) / held + kWarp - 1) / kWarp * kWarp;
}

}  // namespace mcpp
