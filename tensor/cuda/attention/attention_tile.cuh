// Common parts of the attention kernels. A block of 8 warps owns a tile of rows (queries, or keys), kRows per warp, and
// processes the rows of the other kind 32 at a time, one per lane. Tiles are in shared memory in the accumulate type,
// padded with zeros to kDim channels; an odd row stride avoids bank conflicts.
#pragma once
#include "tensor/cuda/launch.cuh"
#include "tensor/cuda/philox.cuh"
#include "tensor/ops/attention_arguments.h"
#include "tensor/ops/dropout.h"

namespace mcpp::attention {

constexpr int kWarps = 8;
constexpr int kThreads = kWarps * kWarp;

/// Rows per warp. fp64 takes twice the shared memory.
template <class W>
constexpr int kRowsOf = sizeof(W) == 8 ? 2 : 4;
template <class W>
constexpr int kOwn = kWarps* kRowsOf<W>;

/// Range [begin, end) of the keys that a query sees.
struct SeenKeys {
  int begin = 0, end = 0;
  __device__ bool has(i64 key) const { return key >= begin && key < end; }
};

template <class E, class W>
struct Problem : AttentionArguments<E, W> {
  W* delta = nullptr;  ///< [batch, heads, queries]: the sum over channels of dout * y
  W scale = 1, soft_cap = 0;
  const i64* samples = nullptr;  ///< [batch]; null without dropout
  u64 dropout_key = 0;
  i64 first_head = 0;
  u32 threshold = 0;
  W keep_scale = 1;

  /// Returns the score for the dot product of a query and a key.
  __device__ W score(W product) const {
    const W x = product * scale;
    return soft_cap > 0 ? soft_cap * tanh(x / soft_cap) : x;
  }
  /// Returns the derivative of score(), given the result of score().
  __device__ W slope(W score) const {
    if (soft_cap == 0) return scale;
    const W t = score / soft_cap;
    return scale * (1 - t * t);
  }

  /// Returns the keys that a query sees; empty past the last query.
  __device__ SeenKeys seen_keys(i64 b, i64 query) const {
    if (query >= this->queries) return {};
    return {static_cast<int>(this->first_key(b, query)), static_cast<int>(this->end_of_keys(query))};
  }
};

/// Dropout factors of the probabilities of one head: 0 or 1 / (1 - p), or 1 without dropout.
template <class E, class W>
struct DropoutFactors {
  const Problem<E, W>& p;
  u64 key = 0;
  i64 sample = 0;

  __device__ DropoutFactors(const Problem<E, W>& problem, i64 b, i64 head) : p(problem) {
    if (!p.samples) return;
    key = philox_key(p.dropout_key, "attention", static_cast<u64>(p.first_head + head));
    sample = p.samples[b];
  }
  __device__ W factor(i64 query, i64 k) const {
    if (!p.samples) return 1;
    const i64 position = p.key_at.at(k);
    const Philox4 bits = philox4x32(key, dropout_counter(sample, p.query_at.at(query), position / 4));
    return word_of(bits, position % 4) >= p.threshold ? p.keep_scale : W{0};
  }
};

template <int kDim>
constexpr int kStride = kDim + 1;

/// Loads rows first .. first + rows - 1 of a head; zeros from row `count` on.
template <int kDim, class E, class W>
__device__ void load_tile(const HeadRows<E>& x, i64 b, i64 head, i64 first, i64 count, int rows, W* tile) {
  for (int r = threadIdx.x / kWarp; r < rows; r += kWarps) {
    const E* from = first + r < count ? x.row(b, head, first + r) : nullptr;
    for (int d = threadIdx.x % kWarp; d < kDim; d += kWarp)
      tile[r * kStride<kDim> + d] = from && d < x.head_dim ? W(widen(from[d])) : W{0};
  }
}

/// Computes dots[i], the dot product of row i of this warp and the lane's row of `other`.
template <int kDim, int kRows, class W>
__device__ void dot_rows(const W* own, const W* other, i64 head_dim, W (&dots)[kRows]) {
  const W* lane_row = own + threadIdx.x / kWarp * kRows * kStride<kDim>;
  const W* other_row = other + threadIdx.x % kWarp * kStride<kDim>;
#pragma unroll
  for (int i = 0; i < kRows; ++i) dots[i] = 0;
  const int n = static_cast<int>(head_dim);
#pragma unroll 4
  for (int d = 0; d < n; ++d) {
#pragma unroll
    for (int i = 0; i < kRows; ++i) dots[i] += lane_row[i * kStride<kDim> + d] * other_row[d];
  }
}

/// Sums in channels lane, lane + 32, ... of the warp's rows.
template <int kDim, int kRows, class W>
using Sums = W[kRows][kDim / kWarp];

/// Adds to sums[i] the weighted sum of the rows of `other`; the weight of row r is weights[i] of lane r.
template <int kDim, int kRows, class W>
__device__ void add_rows(const W (&weights)[kRows], const W* other, Sums<kDim, kRows, W>& sums) {
  const int lane = threadIdx.x % kWarp;
#pragma unroll 2
  for (int r = 0; r < kWarp; ++r) {
    W weight[kRows];
#pragma unroll
    for (int i = 0; i < kRows; ++i) weight[i] = __shfl_sync(~0u, weights[i], r);
#pragma unroll
    for (int c = 0; c < kDim / kWarp; ++c) {
      const W x = other[r * kStride<kDim> + c * kWarp + lane];
#pragma unroll
      for (int i = 0; i < kRows; ++i) sums[i][c] += weight[i] * x;
    }
  }
}

/// Stores the warp's rows, times factor[i], as rows first .. of a head; skips rows from `count` on.
template <int kDim, int kRows, class E, class W>
__device__ void store_rows(const HeadRows<E>& x, i64 b, i64 head, i64 first, i64 count, const W (&factor)[kRows],
                           const Sums<kDim, kRows, W>& sums) {
  const i64 lane_row = first + threadIdx.x / kWarp * kRows;
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    if (lane_row + i >= count) continue;
    E* to = x.row(b, head, lane_row + i);
#pragma unroll
    for (int c = 0; c < kDim / kWarp; ++c) {
      const int d = c * kWarp + threadIdx.x % kWarp;
      if (d < x.head_dim) to[d] = narrow<E>(sums[i][c] * factor[i]);
    }
  }
}

template <int kDim, int kRows, class E, class W>
__device__ void store_rows(const ResultRows<E, W>& x, i64 b, i64 head, i64 first, i64 count, const W (&factor)[kRows],
                           const Sums<kDim, kRows, W>& sums) {
  if (x.low_precision.data)
    store_rows<kDim>(x.low_precision, b, head, first, count, factor, sums);
  else
    store_rows<kDim>(x.accumulate, b, head, first, count, factor, sums);
}

/// Tile, head and sample of a block.
struct BlockTile {
  i64 first, head, b;
  __device__ BlockTile(i64 heads, i64 rows, int own) {
    const i64 tiles = (rows + own - 1) / own;
    first = blockIdx.x % tiles * own;
    head = blockIdx.x / tiles % heads;
    b = blockIdx.x / tiles / heads;
  }
};

}  // namespace mcpp::attention
