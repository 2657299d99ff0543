// Softmax cross entropy: one block per row; each pass reads the row from memory once.
#include <algorithm>

#include "tensor/cuda/launch.cuh"
#include "tensor/ops/kernels.h"

namespace mcpp {
namespace {

constexpr int kThreads = 512;

/// Computes exp(x) for a result that is rounded to E, or summed over the row: low-precision logits do not need full
/// accuracy.
template <class E, class W>
__device__ __forceinline__ W exponential(W x) {
  if constexpr (kIsLowPrecisionElement<E>)
    return __expf(x);
  else
    return exp(x);
}

/// Largest logit and sum of exp(logit - largest). Milakov, Gimelshein, "Online normalizer calculation for softmax",
/// 2018. NaN or +infinity among the logits makes the sum NaN; NaN is never the largest.
template <class W>
struct RowStats {
  W largest = -INFINITY;
  W sum_exp = 0;
};

/// Returns the value to subtract: 0 while all logits are -infinity, since exp(-inf + inf) would be NaN instead of 0.
template <class W>
__device__ __forceinline__ W shift_of(W largest) {
  return largest == -INFINITY ? W{0} : largest;
}

template <class E, class W, int N>
__device__ __forceinline__ void add_logits(RowStats<W>& stats, const W (&logits)[N]) {
  W largest = stats.largest;
#pragma unroll
  for (int k = 0; k < N; ++k) largest = fmax(largest, logits[k]);
  const W shift = shift_of(largest);
  if (largest > stats.largest) {
    stats.sum_exp *= exponential<E>(stats.largest - shift);
    stats.largest = largest;
  }
  W sum = 0;
#pragma unroll
  for (int k = 0; k < N; ++k) sum += exponential<E>(logits[k] - shift);
  stats.sum_exp += sum;
}

/// Computes this thread's part of a row: `packs` packs of 16 bytes, then single elements up to `count`.
template <class W, class E>
__device__ __forceinline__ RowStats<W> thread_stats(const E* x, i64 count, i64 packs) {
  constexpr int kCount = Pack<E>::kCount;
  RowStats<W> stats;
#pragma unroll 4
  for (i64 p = threadIdx.x; p < packs; p += kThreads) {
    const Pack<E> pack = load_pack(x + p * kCount);
    W logits[kCount];
#pragma unroll
    for (int k = 0; k < kCount; ++k) logits[k] = widen(pack.values[k]);
    add_logits<E>(stats, logits);
  }
  for (i64 i = packs * kCount + threadIdx.x; i < count; i += kThreads) {
    const W logit[1] = {widen(x[i])};
    add_logits<E>(stats, logit);
  }
  return stats;
}

/// Rows of n logits, of which the first `count` are valid.
struct RowShape {
  i64 n, count, packs;
  i64 first_row;  ///< token of column 0
};

template <class E, class W>
__global__ void __launch_bounds__(kThreads)
    row_stats(const E* logits, const i32* targets, RowShape shape, W* largests, W* sums, W* target_logits) {
  const i64 row = blockIdx.x;
  const E* x = logits + row * shape.n;
  const RowStats<W> own = thread_stats<W>(x, shape.count, shape.packs);
  const W largest = block_max(own.largest);
  const W sum = block_sum(own.sum_exp * exponential<E>(own.largest - shift_of(largest)));
  if (threadIdx.x != 0) return;
  const i64 target = targets[row] - shape.first_row;
  largests[row] = largest;
  sums[row] = sum;
  target_logits[row] = targets[row] >= 0 && target >= 0 && target < shape.n ? static_cast<W>(widen(x[target])) : W{0};
}

/// Computes x = (exp(x - lse) - [column is the target]) scale for N adjacent columns from `begin` on, with a soft cap
/// also times its slope, 1 - (x / cap)^2; 0 from `count` on.
template <class E, class W>
struct RowGradient {
  i64 count, target;
  W lse, scale, inverse_cap;  ///< 0: no cap

  /// Rounding may make x / cap slightly larger than 1.
  __device__ __forceinline__ W slope(W x) const {
    const W t = x * inverse_cap;
    return inverse_cap > W{0} ? max(fma(-t, t, W{1}), W{0}) : W{1};
  }

  template <int N>
  __device__ __forceinline__ void operator()(E (&x)[N], i64 begin) const {
    const int used = static_cast<int>(std::clamp<i64>(count - begin, 0, N));
    const int target_index = static_cast<int>(std::clamp<i64>(target - begin, -1, N));  // -1 and N: outside
#pragma unroll
    for (int k = 0; k < N; ++k) {
      const W v = widen(x[k]), p = exponential<E>(v - lse);
      x[k] = narrow<E>(k < used ? (p - (k == target_index ? W{1} : W{0})) * scale * slope(v) : W{0});
    }
  }
};

/// Factor of a gradient; `factor` may be null.
struct GradientScale {
  double scale;
  const double* factor;

  __device__ __forceinline__ double value() const { return factor ? scale * *factor : scale; }
};

template <class E, class W>
__global__ void __launch_bounds__(kThreads)
    row_gradient(E* logits, const i32* targets, RowShape shape, const W* lse, GradientScale scale, W inverse_cap) {
  constexpr int kCount = Pack<E>::kCount;
  const i64 row = blockIdx.x;
  E* x = logits + row * shape.n;
  const i32 token = targets[row];
  const RowGradient<E, W> gradient{token < 0 ? 0 : shape.count, token - shape.first_row, lse[row],
                                   static_cast<W>(scale.value()), inverse_cap};
  for (i64 p = threadIdx.x; p < shape.packs; p += kThreads) {
    Pack<E> pack = load_pack(x + p * kCount);
    gradient(pack.values, p * kCount);
    store_pack(x + p * kCount, pack);
  }
  for (i64 i = shape.packs * kCount + threadIdx.x; i < shape.n; i += kThreads) {
    E logit[1] = {x[i]};
    gradient(logit, i);
    x[i] = logit[0];
  }
}

/// Moves `packed` columns of every row 16 bytes at a time if rows are aligned.
template <class E>
RowShape shape_of(const E* logits, i64 n, i64 valid_columns, i64 packed, i64 first_row) {
  const i64 count = std::clamp<i64>(valid_columns, 0, n);
  return {n, count, is_packable(n, logits) ? packed / Pack<E>::kCount : 0, first_row};
}

}  // namespace

template <>
void Kernels<DeviceType::Cuda>::cross_entropy_stats(const Tensor& logits, const Tensor& targets, i64 first_row,
                                                    i64 valid_columns, Tensor& largest, Tensor& sum_exp,
                                                    Tensor& target_logit) {
  const i64 rows = logits.dim(0), n = logits.dim(1);
  if (rows == 0) return;
  const cudaStream_t stream = cuda(logits).stream();
  on_float(logits.dtype(), [&]<class T>() {
    using W = AccumulateType<T>;
    const auto* x = elements<T>(logits);
    const RowShape shape = shape_of(x, n, valid_columns, std::clamp<i64>(valid_columns, 0, n), first_row);
    launch(row_stats<Element<T>, W>, static_cast<unsigned>(rows), kThreads, 0, stream, x, targets.data<i32>(), shape,
           largest.data<W>(), sum_exp.data<W>(), target_logit.data<W>());
  });
}

template <>
void Kernels<DeviceType::Cuda>::cross_entropy_gradient(Tensor& logits, const Tensor& targets, i64 first_row,
                                                       i64 valid_columns, const Tensor& lse, double scale, double cap,
                                                       const Tensor& factor) {
  const i64 rows = logits.dim(0), n = logits.dim(1);
  if (rows == 0) return;
  const cudaStream_t stream = cuda(logits).stream();
  on_float(logits.dtype(), [&]<class T>() {
    using W = AccumulateType<T>;
    auto* x = elements<T>(logits);
    const RowShape shape = shape_of(x, n, valid_columns, n, first_row);
    launch(row_gradient<Element<T>, W>, static_cast<unsigned>(rows), kThreads, 0, stream, x, targets.data<i32>(), shape,
           lse.data<W>(), GradientScale{scale, factor.defined() ? factor.data<double>() : nullptr},
           static_cast<W>(cap > 0 ? 1 / cap : 0));
  });
}

}  // namespace mcpp
