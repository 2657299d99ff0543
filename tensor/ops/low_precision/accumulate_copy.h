// Conversions for computations that are done in fp32 for every model dtype.
#pragma once
#include "tensor/dtype.h"
#include "tensor/ops/ops.h"

namespace mcpp {

/// Returns x in its accumulate dtype: x itself, or a copy.
inline Tensor to_accumulate_dtype(const Tensor& x) {
  if (x.dtype() == accumulate_dtype(x.dtype())) return x;
  Tensor y = Tensor::empty(x.shape(), accumulate_dtype(x.dtype()), x.device());
  ops::copy(x, y);
  return y;
}

/// Adds d, of the accumulate dtype, to dx.
inline void add_converted(const Tensor& d, Tensor& dx) {
  Tensor rounded = d;
  if (dx.dtype() != d.dtype()) {
    rounded = Tensor::empty(d.shape(), dx.dtype(), dx.device());
    ops::copy(d, rounded);
  }
  ops::add_to(rounded, dx);
}

}  // namespace mcpp
