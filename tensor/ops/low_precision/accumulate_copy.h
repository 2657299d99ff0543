// Conversions for computations that are done in fp32 or fp64 for every model dtype.
#pragma once
#include "tensor/dtype.h"
#include "tensor/ops/ops.h"

namespace mcpp {

/// Returns x in this dtype: x itself, or a copy.
inline Tensor to_dtype(const Tensor& x, DType dtype) {
  if (x.dtype() == dtype) return x;
  Tensor y = Tensor::empty(x.shape(), dtype, x.device());
  ops::copy(x, y);
  return y;
}

/// Returns x in its accumulate dtype: x itself, or a copy.
inline Tensor to_accumulate_dtype(const Tensor& x) {
  return to_dtype(x, accumulate_dtype(x.dtype()));
}

/// Adds d, of a wider dtype or the same, to dx.
inline void add_converted(const Tensor& d, Tensor& dx) {
  ops::add_to(to_dtype(d, dx.dtype()), dx);
}

}  // namespace mcpp
