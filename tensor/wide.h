// The type that arithmetic on a given type is done in, which statistics and main gradients have beside it.
#pragma once
#include <type_traits>

#include "tensor/dtype.h"

namespace mcpp {

/// fp32, or fp64 for fp64.
constexpr DType wide(DType t) {
  return t == DType::F64 ? DType::F64 : DType::F32;
}
template <class T>
using Wide = std::conditional_t<std::is_same_v<T, double>, double, float>;

}  // namespace mcpp
