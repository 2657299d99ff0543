// Type in which arithmetic on a given type is done; also that of statistics and main gradients.
#pragma once
#include <type_traits>

#include "tensor/dtype.h"

namespace mcpp {

/// Returns fp32, or fp64 for fp64.
constexpr DType accumulate_dtype(DType t) {
  return t == DType::F64 ? DType::F64 : DType::F32;
}
template <class T>
using AccumulateType = std::conditional_t<std::is_same_v<T, double>, double, float>;

/// Calls f.template operator()<T>() with the C++ type of a statistics dtype: float or double.
template <class F>
decltype(auto) on_accumulate_dtype(DType t, F&& f) {
  MCPP_CHECK(t == accumulate_dtype(t), "statistics are fp32 or fp64, not ", name_of(t));
  if (t == DType::F64) return f.template operator()<double>();
  return f.template operator()<float>();
}

}  // namespace mcpp
