// Nearest valid values to an invalid one, for error messages that suggest a fix.
#pragma once
#include <string>
#include <vector>

#include "base/types.h"

namespace mcpp {

/// Returns the nearest divisors of n below and above `value`, as far as they exist; {value} if it is a divisor.
std::vector<i64> nearest_divisors(i64 n, i64 value);
/// Returns the nearest multiples of `step`, at least `step`, below and above `value`; {value} if it is a multiple.
std::vector<i64> nearest_multiples(i64 step, i64 value);
/// Formats alternatives: "4 or 8".
std::string join_alternatives(const std::vector<i64>& values);

}  // namespace mcpp
