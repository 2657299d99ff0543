#include "tensor/ops/kernels.h"
#include "tensor/ops/weight_update.h"

namespace mcpp {

template <>
void Kernels<DeviceType::Cpu>::compute_update_scale(const Tensor& totals, const Tensor& squares, const StepRule& rule,
                                                    Tensor& scalars) {
  const double* sums = totals.data<double>();
  compute_step_scalars(sums[0], sums[1], *squares.data<double>(), rule, scalars.data<double>());
}

}  // namespace mcpp
