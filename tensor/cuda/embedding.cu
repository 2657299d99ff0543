#include <bit>
#include <cub/device/device_radix_sort.cuh>
#include <limits>

#include "tensor/cuda/rows.cuh"
#include "tensor/ops/kernels.h"

namespace mcpp {
namespace {

template <int N, class E>
__global__ void __launch_bounds__(kRowThreads)
    look_up(const i32* tokens, const E* table, i64 first_row, i64 rows, i64 n, E* y) {
  const i64 t = blockIdx.x, row = tokens[t] - first_row, column = thread_column<N>();
  if (column >= n) return;
  Pack<E, N> pack;
  if (row >= 0 && row < rows) {
    pack = load_pack<N>(table + row * n + column);
  } else {
#pragma unroll
    for (int k = 0; k < N; ++k) pack.values[k] = narrow<E>(0.0f);
  }
  store_pack(y + t * n + column, pack);
}

template <int N, class E>
__global__ void __launch_bounds__(kRowThreads)
    add_table_rows(E* y, const E* table, i64 batch, i64 n, const PositionRanges positions, const i32* starts) {
  const i64 row = blockIdx.x, column = thread_column<N>();
  if (column >= n) return;
  const i64 at = positions.at(row / batch) - (starts ? starts[row] : 0);
  Pack<E, N> sum = load_pack<N>(y + row * n + column);
  const Pack<E, N> position = load_pack<N>(table + at * n + column);
#pragma unroll
  for (int k = 0; k < N; ++k) sum.values[k] = narrow<E>(widen(sum.values[k]) + widen(position.values[k]));
  store_pack(y + row * n + column, sum);
}

/// N columns of a row of the gradient, to which rows of dy are added in order.
template <int N, class W>
struct RowSum {
  static constexpr int kStep = N < Pack<W>::kCount ? N : Pack<W>::kCount;
  W values[N];

  __device__ __forceinline__ void load(const W* from) {
#pragma unroll
    for (int k = 0; k < N; k += kStep) {
      const Pack<W, kStep> part = load_pack<kStep>(from + k);
#pragma unroll
      for (int j = 0; j < kStep; ++j) values[k + j] = part.values[j];
    }
  }
  __device__ __forceinline__ void store(W* to) const {
#pragma unroll
    for (int k = 0; k < N; k += kStep) {
      Pack<W, kStep> part;
#pragma unroll
      for (int j = 0; j < kStep; ++j) part.values[j] = values[k + j];
      store_pack(to + k, part);
    }
  }
  template <class E>
  __device__ __forceinline__ void add(const Pack<E, N>& row) {
#pragma unroll
    for (int k = 0; k < N; ++k) values[k] += widen(row.values[k]);
  }
};

/// Number of rows of dy loaded before the first is added.
constexpr int kUnroll = 8;

/// Tokens of this rank's rows, sorted by row and then by position: `rows` holds dtable's rows, `positions` the rows of
/// dy. Tokens of other ranks have row `row_count`.
struct SortedTokens {
  const u32* rows;
  const i32* positions;
  i64 count;
  u32 row_count;
};

/// Adds dy to the table: the block at the first token of a row adds all tokens of that row.
template <int N, class E, class W>
__global__ void __launch_bounds__(kRowThreads) add_tokens(const E* dy, SortedTokens tokens, i64 n, W* dtable) {
  i64 i = blockIdx.x;
  const i64 column = thread_column<N>();
  const u32 row = tokens.rows[i];
  if (row == tokens.row_count || column >= n || (i > 0 && tokens.rows[i - 1] == row)) return;
  RowSum<N, W> sum;
  sum.load(dtable + row * n + column);
  for (; i < tokens.count && tokens.rows[i] == row; i += kUnroll) {
    i64 positions[kUnroll];
    int used = 0;
#pragma unroll
    for (int k = 0; k < kUnroll; ++k) {
      const i64 next = i + k < tokens.count ? i + k : tokens.count - 1;
      positions[k] = tokens.positions[next];
      used += next == i + k && tokens.rows[next] == row;
    }
    Pack<E, N> packs[kUnroll];
#pragma unroll
    for (int k = 0; k < kUnroll; ++k) {
      if (k < used) packs[k] = load_pack<N>(dy + positions[k] * n + column);
    }
#pragma unroll
    for (int k = 0; k < kUnroll; ++k) {
      if (k < used) sum.add(packs[k]);
    }
  }
  sum.store(dtable + row * n + column);
}

/// Adds the sum over b of dy[s, b] to the table row of s.
template <int N, class E, class W>
__global__ void __launch_bounds__(kRowThreads)
    add_batch(const E* dy, i64 batch, i64 n, const PositionRanges positions, W* dtable) {
  const i64 s = blockIdx.x, column = thread_column<N>(), at = positions.at(s) * n + column;
  if (column >= n) return;
  RowSum<N, W> sum;
  sum.load(dtable + at);
#pragma unroll 4
  for (i64 b = 0; b < batch; ++b) sum.add(load_pack<N>(dy + (s * batch + b) * n + column));
  sum.store(dtable + at);
}

/// Finds the table rows read by the tokens [s, b] of documents.
__global__ void __launch_bounds__(kRowThreads)
    find_rows(const PositionRanges positions, const i32* starts, i64 count, i64 batch, i32* rows) {
  const i64 t = i64{blockIdx.x} * kRowThreads + threadIdx.x;
  if (t < count) rows[t] = static_cast<i32>(positions.at(t / batch)) - starts[t];
}

Tensor rows_of_documents(const Positions& positions) {
  const Tensor& starts = positions.starts;
  Tensor rows = Tensor::empty(starts.shape(), DType::I32, starts.device(), MemoryClass::Workspace);
  const i64 count = starts.numel();
  launch(find_rows, static_cast<unsigned>((count + kRowThreads - 1) / kRowThreads), kRowThreads, 0,
         cuda(starts).stream(), positions.ranges, starts.data<i32>(), count, starts.dim(1), rows.data<i32>());
  return rows;
}

/// Multiplies a gradient by beta before sums are added; 0 overwrites.
void start_sum(Tensor& gradient, float beta) {
  if (beta == 0)
    Kernels<DeviceType::Cuda>::fill_zero(gradient);
  else if (beta != 1)
    Kernels<DeviceType::Cuda>::scale(gradient, beta);
}

__global__ void rows_of_tokens(const i32* tokens, i64 count, i64 first_row, u32 row_count, u32* rows, i32* positions) {
  for (i64 t = blockIdx.x * i64{blockDim.x} + threadIdx.x; t < count; t += i64{gridDim.x} * blockDim.x) {
    const i64 row = tokens[t] - first_row;
    rows[t] = row >= 0 && row < row_count ? static_cast<u32>(row) : row_count;
    positions[t] = static_cast<i32>(t);
  }
}

/// SortedTokens and their memory.
class TokenSort {
 public:
  TokenSort(const Tensor& tokens, i64 first_row, i64 row_count, const CudaDevice& device) {
    const i64 count = tokens.numel();
    constexpr i64 kMaxCount = std::numeric_limits<i32>::max();
    MCPP_CHECK(count < kMaxCount && row_count < kMaxCount, "embedding_backward: ", count, " tokens or ", row_count,
               " rows are too many");
    const auto vector = [&](i64 n) { return Tensor::empty({n}, DType::I32, tokens.device(), MemoryClass::Workspace); };
    const Tensor rows = vector(count), positions = vector(count);
    rows_ = vector(count), positions_ = vector(count);
    sorted_ = {to_u32(rows_), positions_.data<i32>(), count, static_cast<u32>(row_count)};

    launch(rows_of_tokens, grid_for(count, kRowThreads, device), kRowThreads, 0, device.stream(), tokens.data<i32>(),
           count, first_row, sorted_.row_count, to_u32(rows), positions.data<i32>());
    const auto sort = [&](void* workspace, std::size_t& bytes) {
      check_cuda(cub::DeviceRadixSort::SortPairs(workspace, bytes, to_u32(rows), to_u32(rows_), positions.data<i32>(),
                                                 positions_.data<i32>(), static_cast<int>(count), 0,
                                                 std::bit_width(sorted_.row_count), device.stream()),
                 "cub::DeviceRadixSort::SortPairs");
    };
    std::size_t bytes = 0;
    sort(nullptr, bytes);  // only queries the size
    const Tensor workspace = vector(static_cast<i64>(bytes / sizeof(i32)) + 1);
    sort(workspace.raw(), bytes);
  }

  const SortedTokens& sorted() const { return sorted_; }

 private:
  static u32* to_u32(const Tensor& t) { return static_cast<u32*>(t.raw()); }

  Tensor rows_, positions_;
  SortedTokens sorted_{};
};

}  // namespace

template <>
void Kernels<DeviceType::Cuda>::embedding(const Tensor& tokens, const Tensor& table, i64 first_row, Tensor& y) {
  const i64 rows = table.dim(0), n = table.dim(1), count = tokens.numel();
  if (y.numel() == 0) return;
  const cudaStream_t stream = cuda(y).stream();
  const auto run = [&]<class E>(const E* from, E* to) {
    on_unit<E>(is_packable(n, from, to), [&]<int N>() {
      launch(look_up<N, E>, row_grid(count, n / N), kRowThreads, 0, stream, tokens.data<i32>(), from, first_row, rows,
             n, to);
    });
  };
  if (y.dtype() == DType::I32) return run(static_cast<const i32*>(table.data<i32>()), y.data<i32>());
  on_float(y.dtype(), [&]<class T>() {
    const Element<T>* from = elements<T>(table);
    run(from, elements<T>(y));
  });
}

template <>
void Kernels<DeviceType::Cuda>::embedding_backward(const Tensor& dy, const Tensor& tokens, i64 first_row,
                                                   Tensor& dtable, float beta) {
  start_sum(dtable, beta);
  if (dy.numel() == 0 || dtable.numel() == 0) return;
  const CudaDevice& device = cuda(dy);
  const i64 n = dtable.dim(1);
  const TokenSort sort(tokens, first_row, dtable.dim(0), device);
  on_float(dy.dtype(), [&]<class T>() {
    using E = Element<T>;
    using W = AccumulateType<T>;
    const E* from = elements<T>(dy);
    W* to = dtable.data<W>();
    on_unit<E>(is_packable(n, from, to), [&]<int N>() {
      launch(add_tokens<N, E, W>, row_grid(tokens.numel(), n / N), kRowThreads, 0, device.stream(), from, sort.sorted(),
             n, to);
    });
  });
}

template <>
void Kernels<DeviceType::Cuda>::add_positions(Tensor& y, const Tensor& table, const Positions& positions) {
  if (y.numel() == 0) return;
  const cudaStream_t stream = cuda(y).stream();
  const i64 batch = y.dim(1), n = y.dim(2);
  on_float(y.dtype(), [&]<class T>() {
    using E = Element<T>;
    const E* from = elements<T>(table);
    E* to = elements<T>(y);
    on_unit<E>(is_packable(n, from, to), [&]<int N>() {
      launch(add_table_rows<N, E>, row_grid(y.dim(0) * batch, n / N), kRowThreads, 0, stream, to, from, batch, n,
             positions.ranges, positions.starts_or_null());
    });
  });
}

template <>
void Kernels<DeviceType::Cuda>::add_positions_backward(const Tensor& dy, const Positions& positions, Tensor& dtable,
                                                       float beta) {
  if (positions.starts.defined() && dy.numel() > 0)
    return embedding_backward(dy, rows_of_documents(positions), 0, dtable, beta);
  start_sum(dtable, beta);
  if (dy.numel() == 0) return;
  const cudaStream_t stream = cuda(dy).stream();
  const i64 batch = dy.dim(1), n = dy.dim(2);
  on_float(dy.dtype(), [&]<class T>() {
    using E = Element<T>;
    using W = AccumulateType<T>;
    const E* from = elements<T>(dy);
    W* to = dtable.data<W>();
    on_unit<E>(is_packable(n, from, to), [&]<int N>() {
      launch(add_batch<N, E, W>, row_grid(dy.dim(0), n / N), kRowThreads, 0, stream, from, batch, n, positions.ranges,
             to);
    });
  });
}

}  // namespace mcpp
