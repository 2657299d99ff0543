// Index tables computed on the host for kernels.
#pragma once
#include <span>
#include <utility>

#include "tensor/transfer.h"

namespace mcpp {

/// Returns an int32 tensor with these values.
inline Tensor integers(std::span<const i32> values, Shape shape, Device& device) {
  Tensor t = Tensor::empty(std::move(shape), DType::I32, device);
  write_values(values, t);
  return t;
}
inline Tensor integers(std::span<const i32> values, Device& device) {
  return integers(values, {static_cast<i64>(values.size())}, device);
}

}  // namespace mcpp
