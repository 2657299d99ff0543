#include "tensor/cuda/launch.cuh"
#include "tensor/kernels.h"

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

/// y = f(x, y), 16 bytes at a time, and one by one what is left after `packs` of them.
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
    update<<<grid_for(packs > 0 ? packs : n, kThreads, device), kThreads, 0, device.stream()>>>(from, to, n, packs, f);
    check_launch("update");
  });
}

template <class From, class To>
__global__ void convert(const From* from, To* to, i64 n) {
  const i64 step = i64{gridDim.x} * blockDim.x;
  for (i64 i = blockIdx.x * i64{blockDim.x} + threadIdx.x; i < n; i += step) to[i] = narrow<To>(widen(from[i]));
}

/// Blocks add their share in fp64; their sums are added in order by one block.
constexpr int kSumBlocks = 1024;

template <class E>
__global__ void squares(const E* x, i64 n, double* partial) {
  double sum = 0;
  for (i64 i = blockIdx.x * i64{blockDim.x} + threadIdx.x; i < n; i += i64{gridDim.x} * blockDim.x) {
    const double v = static_cast<double>(widen(x[i]));
    sum += v * v;
  }
  sum = block_sum(sum);
  if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}

__global__ void add_up(const double* partial, int count, double* total) {
  double sum = 0;
  for (int i = static_cast<int>(threadIdx.x); i < count; i += static_cast<int>(blockDim.x)) sum += partial[i];
  sum = block_sum(sum);
  if (threadIdx.x == 0) *total = sum;
}

}  // namespace

template <>
void Kernels<DeviceType::Cuda>::fill_zero(Tensor& x) {
  check_cuda(cudaMemsetAsync(x.raw(), 0, static_cast<std::size_t>(x.bytes()), cuda(x).stream()), "cudaMemsetAsync");
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
      convert<<<grid_for(dst.numel(), kThreads, device), kThreads, 0, device.stream()>>>(
          elements<From>(src), elements<To>(dst), dst.numel());
      check_launch("convert");
    });
  });
}

template <>
void Kernels<DeviceType::Cuda>::scale(Tensor& x, double factor) {
  launch_update(x, x, Scale{factor});
}

template <>
void Kernels<DeviceType::Cuda>::add_to(const Tensor& x, Tensor& y) {
  launch_update(x, y, Add{});
}

template <>
double Kernels<DeviceType::Cuda>::sum_of_squares(const Tensor& x) {
  if (x.numel() == 0) return 0;
  CudaDevice& device = cuda(x);
  const Tensor partial = Tensor::empty({kSumBlocks + 1}, DType::F64, device, MemoryClass::Workspace);
  double* sums = partial.data<double>();
  on_float(x.dtype(), [&]<class T>() {
    squares<<<kSumBlocks, kThreads, 0, device.stream()>>>(elements<T>(x), x.numel(), sums);
    check_launch("squares");
  });
  add_up<<<1, kThreads, 0, device.stream()>>>(sums, kSumBlocks, sums + kSumBlocks);
  check_launch("add_up");
  double total = 0;
  check_cuda(cudaMemcpyAsync(&total, sums + kSumBlocks, sizeof(total), cudaMemcpyDeviceToHost, device.stream()),
             "cudaMemcpyAsync");
  device.synchronize();
  return total;
}

}  // namespace mcpp
