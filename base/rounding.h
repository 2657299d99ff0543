// Whole numbers, rounded up.
#pragma once
#include "base/types.h"

namespace mcpp {

/// How many parts of this size hold `whole`, which is at least 0.
constexpr i64 ceil_div(i64 whole, i64 part) {
  return (whole + part - 1) / part;
}

/// The first multiple that is no less than `value`, which is at least 0.
constexpr i64 round_up(i64 value, i64 multiple) {
  return ceil_div(value, multiple) * multiple;
}

}  // namespace mcpp
