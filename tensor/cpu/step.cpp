#include "tensor/ops/judge_step.h"
#include "tensor/ops/kernels.h"

namespace mcpp {

template <>
void Kernels<DeviceType::Cpu>::judge_step(const Tensor& totals, const Tensor& squares, const StepRule& rule,
                                          Tensor& numbers) {
  const double* sums = totals.data<double>();
  judge(sums[0], sums[1], *squares.data<double>(), rule, numbers.data<double>());
}

}  // namespace mcpp
