#include "tensor/cuda/gemm/block_matmul.h"
#include "tensor/cuda/launch.cuh"

namespace mcpp {
namespace {

constexpr int kThreads = 256;

/// Largest magnitude of a matrix on the GPU, and its headroom (struct Nvfp4Scale).
struct MatrixScale {
  const float* amax;
  float headroom;

  __device__ __forceinline__ float value() const { return nvfp4_matrix_scale(*amax, headroom); }
};

__global__ void __launch_bounds__(1) multiply_scales(MatrixScale a, MatrixScale b, float beta, float* factors) {
  factors[0] = a.value() * b.value();
  factors[1] = beta;
}

template <class E>
__global__ void __launch_bounds__(kThreads) add_scaled(const float* product, const float* factors, E* c, i64 count) {
  const i64 first = blockIdx.x * i64{blockDim.x} + threadIdx.x, step = i64{gridDim.x} * blockDim.x;
  const float factor = factors[0], beta = factors[1];
  for (i64 i = first; i < count; i += step)
    c[i] = narrow<E>(fmaf(product[i], factor, beta == 0 ? 0.0f : beta * widen(c[i])));
}

}  // namespace

void write_nvfp4_factors(const Nvfp4Scale& a, const Nvfp4Scale& b, float beta, Tensor& factors) {
  launch(multiply_scales, 1, 1, 0, cuda(factors).stream(), MatrixScale{a.amax.data<float>(), a.headroom},
         MatrixScale{b.amax.data<float>(), b.headroom}, beta, factors.data<float>());
}

void add_scaled_product(const Tensor& product, const Tensor& factors, Tensor& c) {
  CudaDevice& device = cuda(c);
  const i64 count = c.numel();
  on_float(c.dtype(), [&]<class T>() {
    if constexpr (!std::is_same_v<T, double>)
      launch(add_scaled<Element<T>>, grid_for(count, kThreads, device), kThreads, 0, device.stream(),
             product.data<float>(), factors.data<float>(), elements<T>(c), count);
  });
}

}  // namespace mcpp
