// Tensor::zeros, separate from tensor.cpp because it needs an op.
#include "tensor/ops/ops.h"

namespace mcpp {

Tensor Tensor::zeros(Shape shape, DType dtype, Device& device, MemoryClass c) {
  Tensor t = empty(std::move(shape), dtype, device, c);
  ops::fill_zero(t);
  return t;
}

}  // namespace mcpp
