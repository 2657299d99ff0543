// The type that statistics and main gradients have beside activations of a given type.
#pragma once
#include "tensor/dtype.h"

namespace mcpp {

/// fp32, or fp64 for fp64.
constexpr DType wide(DType t) {
  return t == DType::F64 ? DType::F64 : DType::F32;
}

/// Calls f.template operator()<T>() with the type of statistics of type `t`: float or double.
template <class F>
decltype(auto) on_wide(DType t, F&& f) {
  MCPP_CHECK(t == wide(t), "statistics are fp32 or fp64, not ", name_of(t));
  if (t == DType::F64) return f.template operator()<double>();
  return f.template operator()<float>();
}

}  // namespace mcpp
