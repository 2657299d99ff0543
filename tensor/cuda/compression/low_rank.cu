#include "tensor/cuda/launch.cuh"
#include "tensor/ops/low_rank.h"

namespace mcpp {
namespace {

constexpr int kThreads = 1024;

template <class T>
__device__ double column_product(const T* x, i64 rows, i64 columns, i64 j, i64 k) {
  double sum = 0;
  for (i64 i = threadIdx.x; i < rows; i += blockDim.x)
    sum += static_cast<double>(x[i * columns + j]) * static_cast<double>(x[i * columns + k]);
  return block_sum(sum);
}

template <class T>
__device__ void subtract_projections(T* x, i64 rows, i64 columns, i64 j) {
  for (i64 k = 0; k < j; ++k) {
    const double common = column_product(x, rows, columns, j, k);
    for (i64 i = threadIdx.x; i < rows; i += blockDim.x)
      x[i * columns + j] = static_cast<T>(x[i * columns + j] - common * x[i * columns + k]);
  }
}

/// One block per matrix: each thread owns some rows; columns depend on the preceding ones.
template <class T>
__global__ void __launch_bounds__(kThreads) orthonormalize_columns(T* x, i64 rows, i64 columns) {
  for (i64 j = 0; j < columns; ++j) {
    for (int attempt = 0; attempt < kDirectionAttempts; ++attempt) {
      if (attempt > 0) {
        for (i64 i = threadIdx.x; i < rows; i += blockDim.x) x[i * columns + j] = random_sign(i, j, attempt);
      }
      const double before = sqrt(column_product(x, rows, columns, j, j));
      subtract_projections(x, rows, columns, j);
      subtract_projections(x, rows, columns, j);
      const double left = sqrt(column_product(x, rows, columns, j, j));
      if (left <= kMinRelativeResidual * before) continue;
      for (i64 i = threadIdx.x; i < rows; i += blockDim.x)
        x[i * columns + j] = static_cast<T>(x[i * columns + j] * (1 / left));
      break;
    }
  }
}

template <class T>
__global__ void copy_all_if_finite(const T* from, T* to, i64 count, const double* factor) {
  if (!isfinite(*factor)) return;
  const i64 first = blockIdx.x * i64{blockDim.x} + threadIdx.x, step = i64{gridDim.x} * blockDim.x;
  for (i64 i = first; i < count; i += step) to[i] = from[i];
}

/// Calls f.operator()<T>() with the type of x: float or double.
template <class F>
void on_accumulate_dtype(const Tensor& x, const F& f) {
  x.dtype() == DType::F64 ? f.template operator()<double>() : f.template operator()<float>();
}

}  // namespace

template <>
void LowRankKernels<DeviceType::Cuda>::orthonormalize(Tensor& x) {
  if (x.numel() == 0) return;
  on_accumulate_dtype(x, [&]<class T>() {
    launch(orthonormalize_columns<T>, 1, kThreads, 0, cuda(x).stream(), x.data<T>(), x.dim(0), x.dim(1));
  });
}

template <>
void LowRankKernels<DeviceType::Cuda>::copy_if_finite(const Tensor& from, Tensor& to, const Tensor& factor) {
  if (to.numel() == 0) return;
  on_accumulate_dtype(to, [&]<class T>() {
    launch(copy_all_if_finite<T>, grid_for(to.numel(), kThreads, cuda(to)), kThreads, 0, cuda(to).stream(),
           from.data<T>(), to.data<T>(), to.numel(), factor.data<double>());
  });
}

}  // namespace mcpp
