// Tiled attention and its gradient, without materializing s x s scores. Dao et al., "FlashAttention", 2022.
#pragma once
#include <limits>

#include "tensor/cuda/attention/attention_tile.cuh"

namespace mcpp::attention {

template <class W>
__device__ W minus_infinity() {
  return -static_cast<W>(INFINITY);
}

/// Returns the range of keys that a tile of `own` queries, starting at `first`, may see. It starts at a multiple of 32,
/// the number of keys processed at a time. Later queries see later keys.
template <class E, class W>
__device__ SeenKeys keys_of_tile(const Problem<E, W>& p, i64 b, i64 first, int own) {
  return {static_cast<int>(p.first_key(b, first) / kWarp * kWarp),
          static_cast<int>(p.end_of_keys(min(first + own, p.queries) - 1))};
}

/// Running softmax of the rows of one warp (Milakov, Gimelshein, "Online normalizer calculation", 2018).
template <int kRows, class W>
struct Softmax {
  W largest[kRows], sum[kRows];

  __device__ Softmax() {
    // Finite, so that hidden keys change nothing even if they come first.
    for (int i = 0; i < kRows; ++i) largest[i] = std::numeric_limits<W>::lowest(), sum[i] = 0;
  }
  /// Replaces the scores of 32 keys, one per lane, by exp(score - largest); returns the factor for earlier sums.
  __device__ W add(int i, W& score) {
    const W block_max = warp_max(score);
    const W next = block_max > largest[i] || block_max != block_max ? block_max : largest[i];
    const W shrink = exp(largest[i] - next);
    score = exp(score - next);
    sum[i] = sum[i] * shrink + warp_sum(score);
    largest[i] = next;
    return shrink;
  }
};

template <int kDim, class E, class W>
__global__ void __launch_bounds__(kThreads) forward(const __grid_constant__ Problem<E, W> p) {
  constexpr int kRows = kRowsOf<W>;
  W* q = dynamic_shared<W>();
  W* keys = q + kOwn<W> * kStride<kDim>;
  const BlockTile at(p.heads, p.queries, kOwn<W>);
  const i64 kv_head = at.head / p.group(), first_of_warp = at.first + threadIdx.x / kWarp * kRows;
  const DropoutFactors<E, W> keep(p, at.b, at.head);
  load_tile<kDim>(p.q, at.b, at.head, at.first, p.queries, kOwn<W>, q);
  Softmax<kRows, W> softmax;
  Sums<kDim, kRows, W> sums = {};
  SeenKeys seen[kRows];
#pragma unroll
  for (int i = 0; i < kRows; ++i) seen[i] = p.seen_keys(at.b, first_of_warp + i);
  const SeenKeys all = keys_of_tile(p, at.b, at.first, kOwn<W>);
  for (i64 first = all.begin; first < all.end; first += kWarp) {
    W weights[kRows];
    __syncthreads();
    load_tile<kDim>(p.k, at.b, kv_head, first, p.keys, kWarp, keys);
    __syncthreads();
    dot_rows<kDim>(q, keys, p.head_dim, weights);
    __syncthreads();
    load_tile<kDim>(p.v, at.b, kv_head, first, p.keys, kWarp, keys);
    const i64 key = first + threadIdx.x % kWarp;
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      W score = seen[i].has(key) ? p.score(weights[i]) : minus_infinity<W>();
      const W shrink = softmax.add(i, score);
      weights[i] = score * keep.factor(first_of_warp + i, key);
#pragma unroll
      for (int c = 0; c < kDim / kWarp; ++c) sums[i][c] *= shrink;
    }
    __syncthreads();
    add_rows<kDim>(weights, keys, sums);
  }
  W factor[kRows];
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    factor[i] = softmax.sum[i] == 0 ? W{0} : 1 / softmax.sum[i];  // a row that sees no key is zero, its lse -infinity
    if (threadIdx.x % kWarp == 0 && first_of_warp + i < p.queries)
      p.lse[p.lse_row(at.b, at.head) + first_of_warp + i] = softmax.largest[i] + log(softmax.sum[i]);
  }
  store_rows<kDim>(p.out, at.b, at.head, at.first, p.queries, factor, sums);
}

/// Computes delta, with one warp per row of dout and out.
template <class E, class W>
__global__ void __launch_bounds__(kThreads) sum_products(const __grid_constant__ Problem<E, W> p) {
  const i64 rows = p.batch * p.heads * p.queries, step = i64{gridDim.x} * kWarps;
  for (i64 r = blockIdx.x * i64{kWarps} + threadIdx.x / kWarp; r < rows; r += step) {
    const i64 s = r % p.queries, head = r / p.queries % p.heads, b = r / p.queries / p.heads;
    const E *x = p.dout.row(b, head, s), *y = p.y.row(b, head, s);
    W sum = 0;
    for (i64 d = threadIdx.x % kWarp; d < p.y.head_dim; d += kWarp) sum += widen(x[d]) * widen(y[d]);
    sum = warp_sum(sum);
    if (threadIdx.x % kWarp == 0) p.delta[r] = sum;
  }
}

/// Computes the probability after dropout and the gradient of the dot product of one (query, key) pair, given the dot
/// product and dot(dout, v). `seen` are the keys that the query sees; `row` is the first row of the head in lse and
/// delta.
template <class E, class W>
__device__ void score_gradient(const Problem<E, W>& p, const DropoutFactors<E, W>& keep, const SeenKeys& seen, i64 row,
                               i64 query, i64 key, W& score, W& gradient) {
  if (!seen.has(key)) {
    score = gradient = 0;
    return;
  }
  score = p.score(score);
  const W probability = exp(score - p.lse[row + query]), factor = keep.factor(query, key);
  gradient = probability * (factor * gradient - p.delta[row + query]) * p.slope(score);
  score = probability * factor;
}

template <int kDim, class E, class W>
__global__ void __launch_bounds__(kThreads) backward_queries(const __grid_constant__ Problem<E, W> p) {
  constexpr int kRows = kRowsOf<W>;
  W* q = dynamic_shared<W>();
  W* dout = q + kOwn<W> * kStride<kDim>;
  W* k = dout + kOwn<W> * kStride<kDim>;
  W* v = k + kWarp * kStride<kDim>;
  const BlockTile at(p.heads, p.queries, kOwn<W>);
  const i64 kv_head = at.head / p.group(), first_of_warp = at.first + threadIdx.x / kWarp * kRows;
  const DropoutFactors<E, W> keep(p, at.b, at.head);
  load_tile<kDim>(p.q, at.b, at.head, at.first, p.queries, kOwn<W>, q);
  load_tile<kDim>(p.dout, at.b, at.head, at.first, p.queries, kOwn<W>, dout);
  Sums<kDim, kRows, W> sums = {};
  SeenKeys seen[kRows];
#pragma unroll
  for (int i = 0; i < kRows; ++i) seen[i] = p.seen_keys(at.b, first_of_warp + i);
  const SeenKeys all = keys_of_tile(p, at.b, at.first, kOwn<W>);
  const i64 row = p.lse_row(at.b, at.head);
  for (i64 first = all.begin; first < all.end; first += kWarp) {
    __syncthreads();
    load_tile<kDim>(p.k, at.b, kv_head, first, p.keys, kWarp, k);
    load_tile<kDim>(p.v, at.b, kv_head, first, p.keys, kWarp, v);
    __syncthreads();
    W scores[kRows], gradients[kRows];
    dot_rows<kDim>(q, k, p.head_dim, scores);
    dot_rows<kDim>(dout, v, p.v.head_dim, gradients);
#pragma unroll
    for (int i = 0; i < kRows; ++i)
      score_gradient(p, keep, seen[i], row, first_of_warp + i, first + threadIdx.x % kWarp, scores[i], gradients[i]);
    add_rows<kDim>(gradients, k, sums);
  }
  W one[kRows];
  for (int i = 0; i < kRows; ++i) one[i] = 1;
  store_rows<kDim>(p.dq, at.b, at.head, at.first, p.queries, one, sums);
}

/// Computes dk and dv of a tile of keys: all queries of all heads that share the key head, in order.
template <int kDim, class E, class W>
__global__ void __launch_bounds__(kThreads) backward_keys(const __grid_constant__ Problem<E, W> p) {
  constexpr int kRows = kRowsOf<W>;
  W* k = dynamic_shared<W>();
  W* v = k + kOwn<W> * kStride<kDim>;
  W* q = v + kOwn<W> * kStride<kDim>;
  W* dout = q + kWarp * kStride<kDim>;
  const BlockTile at(p.kv_heads, p.keys, kOwn<W>);
  const i64 group = p.group(), first_of_warp = at.first + threadIdx.x / kWarp * kRows;
  load_tile<kDim>(p.k, at.b, at.head, at.first, p.keys, kOwn<W>, k);
  load_tile<kDim>(p.v, at.b, at.head, at.first, p.keys, kOwn<W>, v);
  Sums<kDim, kRows, W> dk = {}, dv = {};
  const i64 begin = p.query_at.rows_before(p.key_at.at(at.first)) / kWarp * kWarp;
  for (i64 head = at.head * group; head < (at.head + 1) * group; ++head) {
    const DropoutFactors<E, W> keep(p, at.b, head);
    for (i64 first = begin; first < p.queries; first += kWarp) {
      if (p.first_key(at.b, first) >= at.first + kOwn<W>) break;  // documents that begin after these keys
      __syncthreads();
      load_tile<kDim>(p.q, at.b, head, first, p.queries, kWarp, q);
      load_tile<kDim>(p.dout, at.b, head, first, p.queries, kWarp, dout);
      __syncthreads();
      W scores[kRows], gradients[kRows];
      dot_rows<kDim>(k, q, p.head_dim, scores);
      dot_rows<kDim>(v, dout, p.v.head_dim, gradients);
      const i64 query = first + threadIdx.x % kWarp, row = p.lse_row(at.b, head);
      const SeenKeys seen = p.seen_keys(at.b, query);
#pragma unroll
      for (int i = 0; i < kRows; ++i)
        score_gradient(p, keep, seen, row, query, first_of_warp + i, scores[i], gradients[i]);
      add_rows<kDim>(scores, dout, dv);
      add_rows<kDim>(gradients, q, dk);
    }
  }
  W one[kRows];
  for (int i = 0; i < kRows; ++i) one[i] = 1;
  store_rows<kDim>(p.dk, at.b, at.head, at.first, p.keys, one, dk);
  store_rows<kDim>(p.dv, at.b, at.head, at.first, p.keys, one, dv);
}

}  // namespace mcpp::attention
