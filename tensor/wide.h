// The type that statistics and main gradients have beside activations of a given type.
#pragma once
#include "tensor/dtype.h"

namespace mcpp {

/// fp32, or fp64 for fp64.
constexpr DType wide(DType t) {
  return t == DType::F64 ? DType::F64 : DType::F32;
}

}  // namespace mcpp
