#include "tensor/cuda/launch.cuh"
#include "tensor/dtype.h"
#include "tensor/ops/kernels.h"

namespace mcpp {
namespace {

constexpr int kThreads = 256, kLossThreads = 1024;

template <class W>
__global__ void rescale(const W* own_largest, const W* largest, W* sum_exp, i64 rows) {
  const i64 step = i64{gridDim.x} * blockDim.x;
  for (i64 t = blockIdx.x * i64{blockDim.x} + threadIdx.x; t < rows; t += step)
    sum_exp[t] *= exp(own_largest[t] - largest[t]);
}

/// Runs in one block: there are few rows, and the order of the sum stays fixed.
template <class W>
__global__ void __launch_bounds__(kLossThreads) row_losses(W* largest, const W* sum_exp, const W* target_logit,
                                                           const i32* targets, W* losses, double* totals, i64 rows) {
  double sum = 0, count = 0;
  for (i64 t = threadIdx.x; t < rows; t += kLossThreads) {
    const W lse = largest[t] + log(sum_exp[t]);
    const bool has_target = targets[t] >= 0;
    const W loss = has_target ? lse - target_logit[t] : W{0};
    largest[t] = lse;
    losses[t] = loss;
    sum += static_cast<double>(loss);
    count += has_target;
  }
  sum = block_sum(sum);
  count = block_sum(count);
  if (threadIdx.x != 0) return;
  totals[0] = sum;
  totals[1] = count;
}

}  // namespace

template <>
void Kernels<DeviceType::Cuda>::cross_entropy_rescale(const Tensor& own_largest, const Tensor& largest,
                                                      Tensor& sum_exp) {
  const i64 rows = sum_exp.numel();
  if (rows == 0) return;
  CudaDevice& device = cuda(sum_exp);
  on_accumulate_dtype(sum_exp.dtype(), [&]<class W>() {
    launch(rescale<W>, grid_for(rows, kThreads, device), kThreads, 0, device.stream(), own_largest.data<W>(),
           largest.data<W>(), sum_exp.data<W>(), rows);
  });
}

template <>
void Kernels<DeviceType::Cuda>::cross_entropy_losses(Tensor& largest, const Tensor& sum_exp, const Tensor& target_logit,
                                                     const Tensor& targets, Tensor& losses, Tensor& totals) {
  const cudaStream_t stream = cuda(largest).stream();
  on_accumulate_dtype(largest.dtype(), [&]<class W>() {
    launch(row_losses<W>, 1, kLossThreads, 0, stream, largest.data<W>(), sum_exp.data<W>(), target_logit.data<W>(),
           targets.data<i32>(), losses.data<W>(), totals.data<double>(), largest.numel());
  });
}

}  // namespace mcpp
