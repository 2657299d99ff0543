#include "tensor/cuda/norm.cuh"
#include "tensor/ops/kernels.h"

namespace mcpp {
namespace {

/// Operands of either norm; RMSNorm has neither bias nor mean.
template <class E>
struct NormRows {
  const E *x, *w, *b;
  E* y;
  AccumulateType<E>*mean, *rstd;
  i64 rows, n;
  AccumulateType<E> eps, offset;               ///< offset of the weights
  const AccumulateType<E>* squares = nullptr;  ///< sums over all ranks' columns; null if rows are not sharded
  AccumulateType<E> columns = 1;
};

/// Threads along x share a row and, if kHeld > 0, hold it in registers, so that it is read once regardless of the
/// number of passes. A block processes one row, or if it is one warp wide, one row per warp.
template <class E, int kUnit, int kHeld, bool kIsCentered>
__global__ void __launch_bounds__(kMaxRowThreads) normalize(const NormRows<E> t) {
  using W = AccumulateType<E>;
  const i64 row = blockIdx.x * i64{blockDim.y} + threadIdx.y, n = t.n;
  if (row >= t.rows) return;
  RowUnits<E, kUnit, kHeld> x;
  x.load(t.x + row * n, n);
  const auto mean_of = [&](auto&& f) {
    W sum = 0;
    each_unit<kUnit, kHeld>(n, [&](int k, i64 i) {
      const auto v = x.at(k, i);
#pragma unroll
      for (int j = 0; j < kUnit; ++j) sum += f(W{widen(v.values[j])});
    });
    return row_sum(sum) / static_cast<W>(n);
  };
  W mean = 0;
  if constexpr (kIsCentered) mean = mean_of([](W v) { return v; });
  const W variance = t.squares ? t.squares[row] / t.columns : mean_of([mean](W v) { return (v - mean) * (v - mean); });
  const W rstd = W{1} / sqrt(variance + t.eps);
  if (threadIdx.x == 0) {
    if constexpr (kIsCentered) t.mean[row] = mean;
    t.rstd[row] = rstd;
  }
  each_unit<kUnit, kHeld>(n, [&](int k, i64 i) {
    auto v = x.at(k, i);
    const auto w = load_pack<E, kUnit>(t.w + i), b = load_bias<E, kUnit>(t.b, i);
#pragma unroll
    for (int j = 0; j < kUnit; ++j) {
      const W xhat = (widen(v.values[j]) - mean) * rstd;
      v.values[j] = narrow<E>(fma(xhat, W{widen(w.values[j])} + t.offset, W{widen(b.values[j])}));
    }
    store_pack(t.y + row * n + i, v);
  });
}

template <class E, bool kIsCentered>
void launch_normalize(const NormRows<E>& t, const CudaDevice& device) {
  constexpr int kHeld = 4, kLoopThreads = 256, kWarpsOfRows = 4;
  if (t.rows == 0) return;
  on_unit<E>(is_packable(t.n, t.x, t.w, t.b, t.y), [&]<int kUnit>() {
    const i64 threads = row_threads(t.n / kUnit, kHeld);
    const bool is_held = threads <= kMaxRowThreads;
    const dim3 block(static_cast<unsigned>(is_held ? threads : kLoopThreads), threads == kWarp ? kWarpsOfRows : 1);
    const auto blocks = static_cast<unsigned>((t.rows + block.y - 1) / block.y);
    if (is_held)
      launch(normalize<E, kUnit, kHeld, kIsCentered>, blocks, block, 0, device.stream(), t);
    else
      launch(normalize<E, kUnit, 0, kIsCentered>, blocks, block, 0, device.stream(), t);
  });
}

/// Computes dots[row] = the sum of a b, or of a (w + offset) b; one warp per row.
template <class E>
__global__ void dot_rows(const E* a, const E* b, const E* w, AccumulateType<E> offset, i64 rows, i64 n,
                         AccumulateType<E>* dots) {
  using W = AccumulateType<E>;
  const i64 step = i64{gridDim.x} * (blockDim.x / kWarp), lane = threadIdx.x % kWarp;
  for (i64 row = blockIdx.x * i64{blockDim.x / kWarp} + threadIdx.x / kWarp; row < rows; row += step) {
    W sum = 0;
    for (i64 i = lane; i < n; i += kWarp) {
      const W left = widen(a[row * n + i]), weight = w ? W{widen(w[i])} + offset : W{1};
      sum += left * weight * W{widen(b[row * n + i])};
    }
    sum = warp_sum(sum);
    if (lane == 0) dots[row] = sum;
  }
}

}  // namespace

template <>
void Kernels<DeviceType::Cuda>::row_dots(const Tensor& a, const Tensor& b, const Tensor* w, double weight_offset,
                                         Tensor& dots) {
  constexpr int kDotThreads = 256;
  const CudaDevice& device = cuda(a);
  const i64 rows = row_count(a);
  if (rows == 0) return;
  on_float(a.dtype(), [&]<class T>() {
    using W = AccumulateType<Element<T>>;
    launch(dot_rows<Element<T>>, grid_for(rows * kWarp, kDotThreads, device), kDotThreads, 0, device.stream(),
           elements<T>(a), elements<T>(b), w ? elements<T>(*w) : nullptr, static_cast<W>(weight_offset), rows,
           a.dim(-1), dots.data<W>());
  });
}

template <>
void Kernels<DeviceType::Cuda>::layer_norm(const Tensor& x, const Tensor& w, const Tensor& b, const NormRule& rule,
                                           Tensor& y, Tensor& mean, Tensor& rstd) {
  const CudaDevice& device = cuda(x);
  on_float(x.dtype(), [&]<class T>() {
    using E = Element<T>;
    using W = AccumulateType<E>;
    launch_normalize<E, true>(
        {elements<T>(x), elements<T>(w), elements<T>(b), elements<T>(y), mean.data<W>(), rstd.data<W>(), row_count(x),
         x.dim(-1), static_cast<W>(rule.eps), static_cast<W>(rule.weight_offset)},
        device);
  });
}

template <>
void Kernels<DeviceType::Cuda>::rms_norm(const Tensor& x, const Tensor& w, const NormRule& rule, Tensor& y,
                                         Tensor& rstd) {
  const CudaDevice& device = cuda(x);
  on_float(x.dtype(), [&]<class T>() {
    using E = Element<T>;
    using W = AccumulateType<E>;
    launch_normalize<E, false>(
        {elements<T>(x), elements<T>(w), nullptr, elements<T>(y), nullptr, rstd.data<W>(), row_count(x), x.dim(-1),
         static_cast<W>(rule.eps), static_cast<W>(rule.weight_offset),
         rule.squares.defined() ? rule.squares.data<W>() : nullptr, static_cast<W>(rule.all_columns)},
        device);
  });
}

}  // namespace mcpp
