#include "tensor/ops/decide_update.h"
#include "tensor/ops/kernels.h"

namespace mcpp {

template <>
void Kernels<DeviceType::Cpu>::decide_update(const Tensor& totals, const Tensor& squares, const StepRule& rule,
                                             Tensor& numbers) {
  const double* sums = totals.data<double>();
  decide(sums[0], sums[1], *squares.data<double>(), rule, numbers.data<double>());
}

}  // namespace mcpp
