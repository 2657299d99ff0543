// Common parts of the forward and backward kernels of LayerNorm and RMSNorm: rows are distributed over a warp or a
// block.
#pragma once
#include "tensor/cuda/rows.cuh"

namespace mcpp {

/// Returns the sum over all threads that share a row: one warp of a block, or the entire block.
template <class W>
__device__ __forceinline__ W row_sum(W x) {
  return blockDim.x == kWarp ? warp_sum(x) : block_sum(x);
}

/// Pair of sums, which share the barriers of one reduction.
template <class W>
struct SumPair {
  W first = 0, second = 0;
};
template <class W>
__device__ __forceinline__ SumPair<W> row_sum(SumPair<W> x) {
  x = {warp_sum(x.first), warp_sum(x.second)};
  if (blockDim.x == kWarp) return x;
  MCPP_SHARED(W[2][kWarp], partial);
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, warps = blockDim.x / kWarp;
  __syncthreads();  // for readers of an earlier call
  if (lane == 0) partial[0][warp] = x.first, partial[1][warp] = x.second;
  __syncthreads();
  const bool is_used = lane < warps;
  return {warp_sum(is_used ? partial[0][lane] : W{0}), warp_sum(is_used ? partial[1][lane] : W{0})};
}

/// Maximum threads per row; more would leave too few registers per thread to hold its part of a row.
constexpr int kMaxRowThreads = 512;

/// Returns the threads, in full warps, that hold a row of `units` units with `held` units each.
inline i64 row_threads(i64 units, int held) {
  return ((units + held - 1) / held + kWarp - 1) / kWarp * kWarp;
}

}  // namespace mcpp
