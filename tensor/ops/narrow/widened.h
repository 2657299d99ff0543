// For what is computed in fp32 whatever the model's type is.
#pragma once
#include "tensor/ops/ops.h"
#include "tensor/wide.h"

namespace mcpp {

/// x in the type of statistics: x itself, or a copy.
inline Tensor widened(const Tensor& x) {
  if (x.dtype() == wide(x.dtype())) return x;
  Tensor y = Tensor::empty(x.shape(), wide(x.dtype()), x.device());
  ops::copy(x, y);
  return y;
}

/// dx += d, which is wide.
inline void add_narrowed(const Tensor& d, Tensor& dx) {
  Tensor rounded = d;
  if (dx.dtype() != d.dtype()) {
    rounded = Tensor::empty(d.shape(), dx.dtype(), dx.device());
    ops::copy(d, rounded);
  }
  ops::add_to(rounded, dx);
}

}  // namespace mcpp
