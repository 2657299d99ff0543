#include "tensor/cuda/norm.cuh"
#include "tensor/ops/kernels.h"

namespace mcpp {
namespace {

/// Operands of either norm; RMSNorm has neither bias nor mean.
template <class E>
struct NormRows {
  const E *x, *w, *b;
  E* y;
  Wide<E>*mean, *rstd;
  i64 rows, n;
  Wide<E> eps;
};

/// Threads along x share a row and, when kHeld > 0, hold it: it is read once however many sweeps it takes. A block has
/// one row, or when it is a warp wide one for each warp.
template <class E, int kUnit, int kHeld, bool kIsCentered>
__global__ void __launch_bounds__(kMostRowThreads) normalize(const NormRows<E> t) {
  using W = Wide<E>;
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
  const W rstd = W{1} / sqrt(mean_of([mean](W v) { return (v - mean) * (v - mean); }) + t.eps);
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
      v.values[j] = narrow<E>(fma(xhat, W{widen(w.values[j])}, W{widen(b.values[j])}));
    }
    store_pack(t.y + row * n + i, v);
  });
}

template <class E, bool kIsCentered>
void launch(const NormRows<E>& t, const CudaDevice& device) {
  constexpr int kHeld = 4, kLoopThreads = 256, kWarpsOfRows = 4;
  if (t.rows == 0) return;
  on_unit<E>(is_packable(t.n, t.x, t.w, t.b, t.y), [&]<int kUnit>() {
    const i64 threads = row_threads(t.n / kUnit, kHeld);
    const bool is_held = threads <= kMostRowThreads;
    const dim3 block(static_cast<unsigned>(is_held ? threads : kLoopThreads), threads == kWarp ? kWarpsOfRows : 1);
    const auto blocks = static_cast<unsigned>((t.rows + block.y - 1) / block.y);
    if (is_held)
      normalize<E, kUnit, kHeld, kIsCentered><<<blocks, block, 0, device.stream()>>>(t);
    else
      normalize<E, kUnit, 0, kIsCentered><<<blocks, block, 0, device.stream()>>>(t);
    check_launch("normalize");
  });
}

}  // namespace

template <>
void Kernels<DeviceType::Cuda>::layer_norm(const Tensor& x, const Tensor& w, const Tensor& b, double eps, Tensor& y,
                                           Tensor& mean, Tensor& rstd) {
  const CudaDevice& device = cuda(x);
  on_float(x.dtype(), [&]<class T>() {
    using E = Element<T>;
    using W = Wide<E>;
    launch<E, true>({elements<T>(x), elements<T>(w), elements<T>(b), elements<T>(y), mean.data<W>(), rstd.data<W>(),
                     row_count(x), x.dim(-1), static_cast<W>(eps)},
                    device);
  });
}

template <>
void Kernels<DeviceType::Cuda>::rms_norm(const Tensor& x, const Tensor& w, double eps, Tensor& y, Tensor& rstd) {
  const CudaDevice& device = cuda(x);
  on_float(x.dtype(), [&]<class T>() {
    using E = Element<T>;
    using W = Wide<E>;
    launch<E, false>({elements<T>(x), elements<T>(w), nullptr, elements<T>(y), nullptr, rstd.data<W>(), row_count(x),
                      x.dim(-1), static_cast<W>(eps)},
                     device);
  });
}

}  // namespace mcpp
