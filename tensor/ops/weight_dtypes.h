// Dtype dispatch of weight updates, for the optimizers of all backends.
#pragma once
#include "tensor/tensor.h"

namespace mcpp {

/// Calls f.template operator()<T, M>() with the types of the master weights and of the model's; M is T if `model` is
/// null.
template <class F>
void on_weight_dtypes(const Tensor& master, const Tensor* model, F&& f) {
  on_float(master.dtype(), [&]<class T>() {
    if constexpr (kIsLowPrecision<T>) {
      fail(ExitCode::Internal, "master weights must be fp32 or fp64");
    } else if (model) {
      on_float(model->dtype(), [&]<class M>() {
        if constexpr (sizeof(M) <= sizeof(T))
          f.template operator()<T, M>();
        else
          fail(ExitCode::Internal, "fp64 weights need fp64 master weights");
      });
    } else {
      f.template operator()<T, T>();
    }
  });
}

}  // namespace mcpp
