#include "tensor/cuda/launch.cuh"
#include "tensor/ops/judge_step.h"
#include "tensor/ops/kernels.h"

namespace mcpp {
namespace {

__global__ void judge_one(const double* totals, const double* squares, StepRule rule, double* numbers) {
  judge(totals[0], totals[1], *squares, rule, numbers);
}

}  // namespace

template <>
void Kernels<DeviceType::Cuda>::judge_step(const Tensor& totals, const Tensor& squares, const StepRule& rule,
                                           Tensor& numbers) {
  judge_one<<<1, 1, 0, cuda(numbers).stream()>>>(totals.data<double>(), squares.data<double>(), rule,
                                                 numbers.data<double>());
  check_launch("judge_one");
}

}  // namespace mcpp
