#include "tensor/cuda/launch.cuh"
#include "tensor/dtype.h"
#include "tensor/ops/z_loss.h"

namespace mcpp {
namespace {

constexpr int kThreads = 1024;

/// Runs in one block: there are few rows, and the order of the sum stays fixed.
template <class W>
__global__ void __launch_bounds__(kThreads)
    z_loss_rows(W* lse, const i32* targets, double coeff, double* total, i64 rows) {
  double sum = 0;
  for (i64 t = threadIdx.x; t < rows; t += kThreads) {
    const double value = static_cast<double>(lse[t]);
    if (targets[t] >= 0) sum += coeff * value * value;
    const double factor = 1 + 2 * coeff * value;  // a comparison, because max() drops NaN
    lse[t] = static_cast<W>(value - log(factor < kMinZLossFactor ? kMinZLossFactor : factor));
  }
  sum = block_sum(sum);
  if (threadIdx.x == 0) total[0] = sum;
}

}  // namespace

template <>
void ZLossKernels<DeviceType::Cuda>::z_loss(Tensor& lse, const Tensor& targets, double coeff, Tensor& total) {
  const cudaStream_t stream = cuda(lse).stream();
  on_accumulate_dtype(lse.dtype(), [&]<class W>() {
    launch(z_loss_rows<W>, 1, kThreads, 0, stream, lse.data<W>(), targets.data<i32>(), coeff, total.data<double>(),
           lse.numel());
  });
}

}  // namespace mcpp
