#include "tensor/cuda/norm.cuh"
#include "tensor/cuda/reduce_rows.cuh"
#include "tensor/ops/kernels.h"

namespace mcpp {
namespace {

/// Operands of either norm; RMSNorm has no mean, and no second half in a chunk's sums.
template <class E>
struct NormOperands {
  const E *dy, *x, *w;
  const AccumulateType<E>*mean, *rstd;
  E* dx;
  bool add_to_dx;
  AccumulateType<E>* sums;  ///< by chunk: sums for dw [n], followed for LayerNorm by those for db [n]
  i64 rows, n, rows_per_chunk;
  AccumulateType<E> offset;       ///< offset of the weights
  const AccumulateType<E>* dots;  ///< sums over all ranks' columns; null if rows are not sharded
  AccumulateType<E> columns;
};

/// Returns how many units of the row, of the weights and of the next row a thread can hold in registers in addition to
/// `held` units of sums: all or none.
constexpr int held_of_row(int held) {
  return held <= 2 ? held : 0;
}

/// Inputs of a thread for one row.
template <class E, int kUnit, int kHeld>
struct Row {
  RowUnits<E, kUnit, held_of_row(kHeld)> dy, x;
  AccumulateType<E> center, rstd, dot;

  __device__ __forceinline__ void load(const NormOperands<E>& t, i64 row) {
    dy.load(t.dy + row * t.n, t.n);
    x.load(t.x + row * t.n, t.n);
    center = t.mean ? t.mean[row] : AccumulateType<E>{0};
    rstd = t.rstd[row];
    dot = t.dots ? t.dots[row] : AccumulateType<E>{0};
  }
};

/// A thread's part of the sums over a chunk's rows: in registers, or in `sums` itself if no units are held.
template <class W, int kUnit, int kHeld>
class ColumnSums {
 public:
  __device__ __forceinline__ explicit ColumnSums(W* sums) : sums_(sums) {}

  __device__ __forceinline__ void add(int k, i64 i, int j, W v, bool is_first) {
    if constexpr (kHeld > 0)
      held_[k][j] += v;
    else
      sums_[i + j] = is_first ? v : sums_[i + j] + v;
  }
  __device__ __forceinline__ void finish(i64 n) const {
    if constexpr (kHeld > 0) {
      each_unit<kUnit, kHeld>(n, [&](int k, i64 i) {
        constexpr int kChunk = std::min(kUnit, Pack<W>::kCount);
#pragma unroll
        for (int j = 0; j < kUnit; j += kChunk) {
          Pack<W, kChunk> chunk;
#pragma unroll
          for (int c = 0; c < kChunk; ++c) chunk.values[c] = held_[k][j + c];
          store_pack(sums_ + i + j, chunk);
        }
      });
    }
  }

 private:
  W* sums_;
  W held_[std::max(kHeld, 1)][kUnit] = {};
};

/// Computes dx = rstd (g - mean(g) - xhat mean(g xhat)) with g = dy w, where only LayerNorm has mean(g); dw += dy xhat
/// and db += dy.
template <class E, int kUnit, int kHeld, bool kIsCentered>
class Backward {
 public:
  using W = AccumulateType<E>;

  __device__ __forceinline__ Backward(const NormOperands<E>& t, W* sums) : t_(t), dw_(sums), db_(sums + t.n) {
    w_.load(t.w, t.n);
  }

  __device__ __forceinline__ void add_row(const Row<E, kUnit, kHeld>& row, E* dx, bool is_first) {
    RowUnits<E, kUnit, held_of_row(kHeld)> old_dx;
    if (t_.add_to_dx) old_dx.load(dx, t_.n);
    const SumPair<W> means = means_of(row);
    each_unit<kUnit, kHeld>(t_.n, [&](int k, i64 i) {
      const auto dys = row.dy.at(k, i), xs = row.x.at(k, i), ws = w_.at(k, i);
      Pack<E, kUnit> out;
      if (t_.add_to_dx) out = old_dx.at(k, i);
#pragma unroll
      for (int j = 0; j < kUnit; ++j) {
        const W dy = widen(dys.values[j]), xhat = (widen(xs.values[j]) - row.center) * row.rstd;
        const W old = t_.add_to_dx ? W{widen(out.values[j])} : W{0};
        const W centered = dy * (widen(ws.values[j]) + t_.offset) - means.first;
        out.values[j] = narrow<E>(fma(row.rstd, fma(-xhat, means.second, centered), old));
        dw_.add(k, i, j, dy * xhat, is_first);
        if constexpr (kIsCentered) db_.add(k, i, j, dy, is_first);
      }
      store_pack(dx + i, out);
    });
  }

  __device__ __forceinline__ void finish() const {
    dw_.finish(t_.n);
    if constexpr (kIsCentered) db_.finish(t_.n);
  }

 private:
  /// Returns mean(g), 0 for RMSNorm, and mean(g xhat).
  __device__ __forceinline__ SumPair<W> means_of(const Row<E, kUnit, kHeld>& row) const {
    SumPair<W> sums;
    each_unit<kUnit, kHeld>(t_.n, [&](int k, i64 i) {
      const auto dys = row.dy.at(k, i), xs = row.x.at(k, i), ws = w_.at(k, i);
#pragma unroll
      for (int j = 0; j < kUnit; ++j) {
        const W g = widen(dys.values[j]) * (widen(ws.values[j]) + t_.offset);
        sums.first += g;
        sums.second = fma(g, (widen(xs.values[j]) - row.center) * row.rstd, sums.second);
      }
    });
    if (t_.dots) return {W{0}, row.dot * row.rstd / t_.columns};
    sums = row_sum(sums);
    const W n = static_cast<W>(t_.n);
    return {kIsCentered ? sums.first / n : W{0}, sums.second / n};
  }

  const NormOperands<E>& t_;
  RowUnits<E, kUnit, kIsCentered ? 0 : held_of_row(kHeld)> w_;  // LayerNorm has no registers left for it
  ColumnSums<W, kUnit, kHeld> dw_, db_;
};

/// A block processes the rows of one chunk in order, loading the next row while it computes the current one.
template <class E, int kUnit, int kHeld, bool kIsCentered>
__global__ void __launch_bounds__(kMaxRowThreads) normalize_backward(const NormOperands<E> t) {
  const i64 begin = blockIdx.x * t.rows_per_chunk;
  const i64 end = begin + t.rows_per_chunk < t.rows ? begin + t.rows_per_chunk : t.rows;
  Backward<E, kUnit, kHeld, kIsCentered> backward(t, t.sums + blockIdx.x * (kIsCentered ? 2 : 1) * t.n);
  Row<E, kUnit, kHeld> row;
  row.load(t, begin);
  for (i64 r = begin; r < end; ++r) {
    Row<E, kUnit, kHeld> next{};
    if (r + 1 < end) next.load(t, r + 1);
    backward.add_row(row, t.dx + r * t.n, r == begin);
    row = next;
  }
  backward.finish();
}

/// Returns the maximum number of chunks of rows, one block each: two per multiprocessor of an H100 or H200 for wide
/// rows, twice that for narrow rows, which use few threads.
i64 max_chunks(i64 n) {
  return n > 2048 ? 264 : 528;
}

template <class E, bool kIsCentered>
void launch_backward(const NormOperands<E>& t, i64 chunks, const CudaDevice& device) {
  constexpr int kLoopThreads = 256;
  if (t.rows == 0) return;
  on_unit<E>(is_packable(t.n, t.dy, t.x, t.w, t.dx), [&]<int kUnit>() {
    const i64 units = t.n / kUnit;
    const auto run = [&](auto kernel, i64 threads) {
      launch(kernel, static_cast<unsigned>(chunks), static_cast<unsigned>(threads), 0, device.stream(), t);
    };
    if (row_threads(units, 2) <= kMaxRowThreads)
      run(normalize_backward<E, kUnit, 2, kIsCentered>, row_threads(units, 2));
    else if (row_threads(units, 4) <= kMaxRowThreads)
      run(normalize_backward<E, kUnit, 4, kIsCentered>, row_threads(units, 4));
    else
      run(normalize_backward<E, kUnit, 0, kIsCentered>, kLoopThreads);
  });
}

template <bool kIsCentered>
void norm_backward(const Tensor& dy, const NormForward& y, NormGradients& gradients) {
  constexpr i64 kMinRows = 4;
  const Tensor& x = y.x;
  CudaDevice& device = cuda(x);
  const i64 rows = row_count(x), n = x.dim(-1);
  on_float(x.dtype(), [&]<class T>() {
    using E = Element<T>;
    using W = AccumulateType<E>;
    const PartialSums<W> partial(rows, kIsCentered ? 2 * n : n, kMinRows, max_chunks(n), device);
    const NormOperands<E> t{elements<T>(dy),
                            elements<T>(x),
                            elements<T>(y.w),
                            kIsCentered ? y.mean.data<W>() : nullptr,
                            y.rstd.data<W>(),
                            elements<T>(gradients.dx),
                            gradients.add_to_dx,
                            partial.data(),
                            rows,
                            n,
                            partial.rows_per_chunk,
                            static_cast<W>(y.weight_offset),
                            y.dots.defined() ? y.dots.data<W>() : nullptr,
                            static_cast<W>(y.all_columns)};
    launch_backward<E, kIsCentered>(t, partial.chunks, device);
    partial.add_to(gradients.dw, 0, gradients.beta_dw);
    if constexpr (kIsCentered) partial.add_to(gradients.db, n, gradients.beta_db);
  });
}

}  // namespace

template <>
void Kernels<DeviceType::Cuda>::layer_norm_backward(const Tensor& dy, const NormForward& y, NormGradients& gradients) {
  norm_backward<true>(dy, y, gradients);
}

template <>
void Kernels<DeviceType::Cuda>::rms_norm_backward(const Tensor& dy, const NormForward& y, NormGradients& gradients) {
  norm_backward<false>(dy, y, gradients);
}

}  // namespace mcpp
