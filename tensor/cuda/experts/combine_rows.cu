#include "tensor/cuda/rows.cuh"
#include "tensor/ops/kernels.h"

namespace mcpp {
namespace {

/// Computes y[t] = sum of weights[t, j] x[slots[t, j]]; each block processes part of one t.
template <int N, class E, class W>
__global__ void __launch_bounds__(kRowThreads)
    combine(const E* x, const i32* slots, const W* weights, i64 k, i64 n, E* y) {
  const i64 t = blockIdx.x, column = thread_column<N>();
  if (column >= n) return;
  W sums[N] = {};
#pragma unroll 4
  for (i64 j = 0; j < k; ++j) {
    const i64 slot = slots[t * k + j];
    if (slot < 0) continue;
    const W weight = weights ? weights[t * k + j] : W{1};
    const Pack<E, N> row = load_pack<N>(x + slot * n + column);
#pragma unroll
    for (int i = 0; i < N; ++i) sums[i] = fma(weight, W{widen(row.values[i])}, sums[i]);
  }
  Pack<E, N> result;
#pragma unroll
  for (int i = 0; i < N; ++i) result.values[i] = narrow<E>(sums[i]);
  store_pack(y + t * n + column, result);
}

/// Computes dx[slot] = weight dy[t] and d_weight = dy[t] . x[slot] for a slot of t, one per block. dx may alias x.
template <int N, class E, class W>
__global__ void __launch_bounds__(kRowThreads)
    combine_backward(const E* dy, const E* x, const i32* slots, const W* weights, i64 k, i64 n, E* dx, W* d_weights) {
  const i64 t = blockIdx.x / k, slot = slots[blockIdx.x];
  W sum = 0;
  if (slot >= 0) {
    const W weight = weights[blockIdx.x];
    for (i64 column = i64{threadIdx.x} * N; column < n; column += kRowThreads * N) {
      const Pack<E, N> g = load_pack<N>(dy + t * n + column), row = load_pack<N>(x + slot * n + column);
      Pack<E, N> result;
#pragma unroll
      for (int i = 0; i < N; ++i) {
        const W value = widen(g.values[i]);
        sum = fma(value, W{widen(row.values[i])}, sum);
        result.values[i] = narrow<E>(weight * value);
      }
      store_pack(dx + slot * n + column, result);
    }
  }
  sum = block_sum(sum);
  if (threadIdx.x == 0) d_weights[blockIdx.x] = sum;
}

}  // namespace

template <>
void Kernels<DeviceType::Cuda>::combine_rows(const Tensor& x, const Tensor& slots, const Tensor* weights, Tensor& y) {
  const i64 n = x.dim(1), k = slots.dim(1);
  if (y.numel() == 0) return;
  const cudaStream_t stream = cuda(y).stream();
  on_float(x.dtype(), [&]<class T>() {
    using E = Element<T>;
    using W = AccumulateType<T>;
    const E* from = elements<T>(x);
    E* to = elements<T>(y);
    on_unit<E>(is_packable(n, from, to), [&]<int N>() {
      launch(combine<N, E, W>, row_grid(slots.dim(0), n / N), kRowThreads, 0, stream, from, slots.data<i32>(),
             weights ? weights->data<W>() : nullptr, k, n, to);
    });
  });
}

template <>
void Kernels<DeviceType::Cuda>::combine_rows_backward(const Tensor& dy, const Tensor& x, const Tensor& slots,
                                                      const Tensor& weights, Tensor& dx, Tensor& d_weights) {
  if (slots.numel() == 0) return;
  const cudaStream_t stream = cuda(dy).stream();
  on_float(x.dtype(), [&]<class T>() {
    using E = Element<T>;
    using W = AccumulateType<T>;
    const E *g = elements<T>(dy), *from = elements<T>(x);
    E* to = elements<T>(dx);
    on_unit<E>(is_packable(x.dim(1), g, from, to), [&]<int N>() {
      launch(combine_backward<N, E, W>, static_cast<unsigned>(slots.numel()), kRowThreads, 0, stream, g, from,
             slots.data<i32>(), weights.data<W>(), slots.dim(1), x.dim(1), to, d_weights.data<W>());
    });
  });
}

}  // namespace mcpp
