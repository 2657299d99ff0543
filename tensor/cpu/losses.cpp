// Per-row losses. They are cheap compared to the rows, so one thread computes them, in an order independent of the
// number of threads.
#include <cmath>

#include "tensor/dtype.h"
#include "tensor/ops/kernels.h"

namespace mcpp {

template <>
void Kernels<DeviceType::Cpu>::cross_entropy_rescale(const Tensor& own_largest, const Tensor& largest,
                                                     Tensor& sum_exp) {
  on_accumulate_dtype(sum_exp.dtype(), [&]<class T>() {
    const T *own = own_largest.data<T>(), *all = largest.data<T>();
    T* sums = sum_exp.data<T>();
    for (i64 t = 0; t < sum_exp.numel(); ++t) sums[t] *= std::exp(own[t] - all[t]);
  });
}

template <>
void Kernels<DeviceType::Cpu>::cross_entropy_losses(Tensor& largest, const Tensor& sum_exp, const Tensor& target_logit,
                                                    const Tensor& targets, Tensor& losses, Tensor& totals) {
  on_accumulate_dtype(largest.dtype(), [&]<class T>() {
    const T *sums = sum_exp.data<T>(), *target_logits = target_logit.data<T>();
    const i32* ids = targets.data<i32>();
    T *lse = largest.data<T>(), *to = losses.data<T>();
    double sum = 0, count = 0;
    for (i64 t = 0; t < largest.numel(); ++t) {
      lse[t] += std::log(sums[t]);
      to[t] = ids[t] >= 0 ? lse[t] - target_logits[t] : T{0};
      sum += static_cast<double>(to[t]);
      count += ids[t] >= 0;
    }
    totals.data<double>()[0] = sum;
    totals.data<double>()[1] = count;
  });
}

}  // namespace mcpp
