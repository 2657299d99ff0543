#include "tensor/cuda/launch.cuh"
#include "tensor/ops/kernels.h"
#include "tensor/ops/weight_update.h"

namespace mcpp {
namespace {

__global__ void decide_one(const double* totals, const double* squares, StepRule rule, double* numbers) {
  compute_step_scalars(totals[0], totals[1], *squares, rule, numbers);
}

}  // namespace

template <>
void Kernels<DeviceType::Cuda>::compute_update_scale(const Tensor& totals, const Tensor& squares, const StepRule& rule,
                                                     Tensor& numbers) {
  launch(decide_one, 1, 1, 0, cuda(numbers).stream(), totals.data<double>(), squares.data<double>(), rule,
         numbers.data<double>());
}

}  // namespace mcpp
