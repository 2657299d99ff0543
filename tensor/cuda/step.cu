#include "tensor/cuda/launch.cuh"
#include "tensor/ops/kernels.h"
#include "tensor/ops/weight_update.h"

namespace mcpp {
namespace {

__global__ void compute_scalars(const double* totals, const double* squares, StepRule rule, double* scalars) {
  compute_step_scalars(totals[0], totals[1], *squares, rule, scalars);
}

}  // namespace

template <>
void Kernels<DeviceType::Cuda>::compute_update_scale(const Tensor& totals, const Tensor& squares, const StepRule& rule,
                                                     Tensor& scalars) {
  launch(compute_scalars, 1, 1, 0, cuda(scalars).stream(), totals.data<double>(), squares.data<double>(), rule,
         scalars.data<double>());
}

}  // namespace mcpp
