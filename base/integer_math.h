// Integer division and rounding up, and conversion of counts to floating point.
#pragma once
#include "base/types.h"

namespace mcpp {

/// Returns the number of parts of size `part` needed to hold `total` >= 0.
constexpr i64 ceil_div(i64 total, i64 part) {
  return (total + part - 1) / part;
}

/// Returns the smallest multiple of `multiple` that is at least `value` >= 0.
constexpr i64 round_up(i64 value, i64 multiple) {
  return ceil_div(value, multiple) * multiple;
}

constexpr double real(i64 n) {
  return static_cast<double>(n);
}

}  // namespace mcpp
