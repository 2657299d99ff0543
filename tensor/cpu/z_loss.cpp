#include "tensor/ops/z_loss.h"

#include <cmath>

#include "tensor/dtype.h"

namespace mcpp {

/// One thread computes the rows, which are few, in their order.
template <>
void ZLossKernels<DeviceType::Cpu>::z_loss(Tensor& lse, const Tensor& targets, double coeff, Tensor& total) {
  on_accumulate_dtype(lse.dtype(), [&]<class T>() {
    T* values = lse.data<T>();
    const i32* ids = targets.data<i32>();
    double sum = 0;
    for (i64 t = 0; t < lse.numel(); ++t) {
      const auto value = static_cast<double>(values[t]);
      if (ids[t] >= 0) sum += coeff * value * value;
      const double factor = 1 + 2 * coeff * value;  // a comparison, because max() drops NaN
      values[t] = static_cast<T>(value - std::log(factor < kMinZLossFactor ? kMinZLossFactor : factor));
    }
    total.data<double>()[0] = sum;
  });
}

}  // namespace mcpp
