#include <algorithm>

#include "base/integer_math.h"
#include "tensor/cuda/reduce_rows.cuh"
#include "tensor/ops/kernels.h"

namespace mcpp {
namespace {

constexpr int kThreads = 256;

struct Add {
  template <class W>
  __device__ W operator()(W x, W y) const {
    return y + x;
  }
};
struct Scale {
  double factor;
  template <class W>
  __device__ W operator()(W x, W) const {
    return x * static_cast<W>(factor);
  }
};

struct SoftCap {
  double cap;
  template <class W>
  __device__ W operator()(W x, W) const {
    return static_cast<W>(cap) * tanh(x / static_cast<W>(cap));
  }
};

struct Normalize {
  const double* squares;
  double eps;
  template <class W>
  __device__ W operator()(W x, W) const {
    return x * static_cast<W>(1 / (sqrt(*squares) + eps));
  }
};

/// Computes y = f(x, y), 16 bytes at a time for `packs` packs, then single elements.
template <class E, class F>
__global__ void update(const E* x, E* y, i64 n, i64 packs, F f) {
  constexpr int kCount = Pack<E>::kCount;
  const i64 first = blockIdx.x * i64{blockDim.x} + threadIdx.x, step = i64{gridDim.x} * blockDim.x;
  for (i64 p = first; p < packs; p += step) {
    const Pack<E> a = load_pack(x + p * kCount);
    Pack<E> b = load_pack(y + p * kCount);
#pragma unroll
    for (int k = 0; k < kCount; ++k) b.values[k] = narrow<E>(f(widen(a.values[k]), widen(b.values[k])));
    store_pack(y + p * kCount, b);
  }
  for (i64 i = packs * kCount + first; i < n; i += step) y[i] = narrow<E>(f(widen(x[i]), widen(y[i])));
}

template <class F>
void launch_update(const Tensor& x, Tensor& y, F f) {
  const i64 n = y.numel();
  if (n == 0) return;
  CudaDevice& device = cuda(y);
  on_float(y.dtype(), [&]<class T>() {
    using E = Element<T>;
    const E* from = elements<T>(x);
    E* to = elements<T>(y);
    const i64 packs = is_packable(Pack<E>::kCount, from, static_cast<const E*>(to)) ? n / Pack<E>::kCount : 0;
    launch(update<E, F>, grid_for(packs > 0 ? packs : n, kThreads, device), kThreads, 0, device.stream(), from, to, n,
           packs, f);
  });
}

template <class E>
__global__ void set_all(E* x, i64 n, double value) {
  const i64 step = i64{gridDim.x} * blockDim.x;
  for (i64 i = blockIdx.x * i64{blockDim.x} + threadIdx.x; i < n; i += step) x[i] = narrow<E>(value);
}

template <class From, class To>
__global__ void convert(const From* from, To* to, i64 n) {
  const i64 step = i64{gridDim.x} * blockDim.x;
  for (i64 i = blockIdx.x * i64{blockDim.x} + threadIdx.x; i < n; i += step) to[i] = narrow<To>(widen(from[i]));
}

/// Blocks compute partial sums in fp64, which one block adds in order. Small tensors need fewer blocks, whose sums are
/// the same: more blocks would add zeros.
constexpr i64 kMaxSumBlocks = 1024;

template <class E>
__global__ void squares(const E* x, i64 n, double* partial) {
  constexpr int kCount = Pack<E>::kCount;
  const i64 first = blockIdx.x * i64{blockDim.x} + threadIdx.x, step = i64{gridDim.x} * blockDim.x;
  const i64 packs = reinterpret_cast<std::uintptr_t>(x) % sizeof(Pack<E>) == 0 ? n / kCount : 0;
  double sum = 0;
  const auto add = [&sum](E value) {
    const double v = static_cast<double>(widen(value));
    sum += v * v;
  };
#pragma unroll 4
  for (i64 p = first; p < packs; p += step) {
    const Pack<E> pack = load_pack(x + p * kCount);
#pragma unroll
    for (int k = 0; k < kCount; ++k) add(pack.values[k]);
  }
  for (i64 i = packs * kCount + first; i < n; i += step) add(x[i]);
  sum = block_sum(sum);
  if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}

__global__ void sum_partials(const double* partial, int count, double* total) {
  double sum = 0;
  for (int i = static_cast<int>(threadIdx.x); i < count; i += static_cast<int>(blockDim.x)) sum += partial[i];
  sum = block_sum(sum);
  if (threadIdx.x == 0) *total += sum;
}

/// Computes x += bias in every row.
template <class E, int kUnit>
__global__ void add_to_rows(E* x, const E* bias, i64 rows, i64 n) {
  constexpr int kUnroll = 4;
  const i64 i = first_column<kUnit>();
  if (i >= n) return;
  const auto b = load_pack<E, kUnit>(bias + i);
  Pack<E, kUnit> v[kUnroll];
  sweep_rows<kUnroll>(
      rows, [&](int k, i64 row) { v[k] = load_pack<E, kUnit>(x + row * n + i); },
      [&](int k, i64 row) {
#pragma unroll
        for (int j = 0; j < kUnit; ++j) v[k].values[j] = narrow<E>(widen(v[k].values[j]) + widen(b.values[j]));
        store_pack(x + row * n + i, v[k]);
      });
}

/// Rows are distributed over the warps of a block: each sums every kSumWarps-th row of a chunk.
constexpr int kSumWarps = 8;

/// Computes sums[chunk, n] = the sums over the chunk's rows; chunk = blockIdx.y.
template <class E, int kUnit>
__global__ void sum_columns(const E* x, i64 rows, i64 n, i64 rows_per_chunk, AccumulateType<E>* sums) {
  using W = AccumulateType<E>;
  MCPP_SHARED(W[kSumWarps][kWarp * kUnit], shared);
  const i64 i = first_column<kUnit>(), begin = blockIdx.y * rows_per_chunk;
  const i64 end = begin + rows_per_chunk < rows ? begin + rows_per_chunk : rows;
  W sum[kUnit] = {};
  if (i < n) {
#pragma unroll 4
    for (i64 row = begin + threadIdx.y; row < end; row += kSumWarps) {
      const auto v = load_pack<E, kUnit>(x + row * n + i);
#pragma unroll
      for (int j = 0; j < kUnit; ++j) sum[j] += widen(v.values[j]);
    }
  }
#pragma unroll
  for (int j = 0; j < kUnit; ++j) shared[threadIdx.y][threadIdx.x * kUnit + j] = sum[j];
  __syncthreads();
  const int column = static_cast<int>(threadIdx.y * kWarp + threadIdx.x);
  const i64 to = blockIdx.x * i64{kWarp * kUnit} + column;
  if (column >= kWarp * kUnit || to >= n) return;
  W total = 0;
  for (int warp = 0; warp < kSumWarps; ++warp) total += shared[warp][column];
  sums[blockIdx.y * n + to] = total;
}

}  // namespace

template <>
void Kernels<DeviceType::Cuda>::fill_zero(Tensor& x) {
  if (x.numel() == 0) return;
  check_cuda(cudaMemsetAsync(x.raw(), 0, static_cast<std::size_t>(x.bytes()), cuda(x).stream()), "cudaMemsetAsync");
}

template <>
void Kernels<DeviceType::Cuda>::fill(Tensor& x, double value) {
  const i64 n = x.numel();
  if (n == 0) return;
  CudaDevice& device = cuda(x);
  on_float(x.dtype(), [&]<class T>() {
    launch(set_all<Element<T>>, grid_for(n, kThreads, device), kThreads, 0, device.stream(), elements<T>(x), n, value);
  });
}

template <>
void Kernels<DeviceType::Cuda>::copy(const Tensor& src, Tensor& dst) {
  if (src.dtype() == dst.dtype()) {
    check_cuda(cudaMemcpyAsync(dst.raw(), src.raw(), static_cast<std::size_t>(dst.bytes()), cudaMemcpyDeviceToDevice,
                               cuda(dst).stream()),
               "cudaMemcpyAsync");
    return;
  }
  if (dst.numel() == 0) return;
  CudaDevice& device = cuda(dst);
  on_float(src.dtype(), [&]<class From>() {
    on_float(dst.dtype(), [&]<class To>() {
      launch(convert<Element<From>, Element<To>>, grid_for(dst.numel(), kThreads, device), kThreads, 0, device.stream(),
             elements<From>(src), elements<To>(dst), dst.numel());
    });
  });
}

template <>
void Kernels<DeviceType::Cuda>::scale(Tensor& x, double factor) {
  launch_update(x, x, Scale{factor});
}

template <>
void Kernels<DeviceType::Cuda>::soft_cap(Tensor& x, double cap) {
  launch_update(x, x, SoftCap{cap});
}

template <>
void Kernels<DeviceType::Cuda>::add_to(const Tensor& x, Tensor& y) {
  launch_update(x, y, Add{});
}

template <>
void Kernels<DeviceType::Cuda>::add_sum_of_squares(const Tensor& x, Tensor& sum) {
  if (x.numel() == 0) return;
  CudaDevice& device = cuda(x);
  const i64 blocks = std::min(kMaxSumBlocks, ceil_div(x.numel(), kThreads));
  const Tensor partial = Tensor::empty({blocks}, DType::F64, device, MemoryClass::Workspace);
  on_float(x.dtype(), [&]<class T>() {
    launch(squares<Element<T>>, static_cast<unsigned>(blocks), kThreads, 0, device.stream(), elements<T>(x), x.numel(),
           partial.data<double>());
  });
  launch(sum_partials, 1, kThreads, 0, device.stream(), partial.data<double>(), static_cast<int>(blocks),
         sum.data<double>());
}

template <>
void Kernels<DeviceType::Cuda>::normalize(Tensor& x, const Tensor& squares, double eps) {
  launch_update(x, x, Normalize{squares.data<double>(), eps});
}

template <>
void Kernels<DeviceType::Cuda>::column_sum(const Tensor& dy, Tensor& db, float beta) {
  CudaDevice& device = cuda(dy);
  constexpr i64 kMinRows = 64, kMaxChunks = 256;
  const i64 rows = row_count(dy), n = dy.dim(-1);
  on_float(dy.dtype(), [&]<class T>() {
    using E = Element<T>;
    const PartialSums<AccumulateType<E>> partial(rows, n, kMinRows, kMaxChunks, device);
    const E* x = elements<T>(dy);
    on_unit<E>(is_packable(n, x), [&]<int kUnit>() {
      static_assert(kUnit <= kSumWarps);
      const i64 blocks = (n + kWarp * kUnit - 1) / (kWarp * kUnit);
      if (rows == 0) return;
      launch(sum_columns<E, kUnit>, dim3(static_cast<unsigned>(blocks), static_cast<unsigned>(partial.chunks)),
             dim3(kWarp, kSumWarps), 0, device.stream(), x, rows, n, partial.rows_per_chunk, partial.data());
    });
    partial.add_to(db, 0, beta);
  });
}

template <>
void Kernels<DeviceType::Cuda>::add_bias(Tensor& x, const Tensor& bias) {
  if (x.numel() == 0) return;
  CudaDevice& device = cuda(x);
  const i64 rows = row_count(x), n = x.dim(-1);
  on_float(x.dtype(), [&]<class T>() {
    using E = Element<T>;
    E* to = elements<T>(x);
    const E* b = elements<T>(bias);
    on_unit<E>(is_packable(n, static_cast<const E*>(to), b), [&]<int kUnit>() {
      const auto [grid, block] = columns_launch(n / kUnit, rows, device);
      launch(add_to_rows<E, kUnit>, grid, block, 0, device.stream(), to, b, rows, n);
    });
  });
}

}  // namespace mcpp
