// The values next to one that does not divide, for messages that say what would do.
#pragma once
#include <string>
#include <vector>

#include "base/types.h"

namespace mcpp {

/// The divisors of n next to `value` on both sides, those that exist; {value} when it is one.
std::vector<i64> nearest_divisors(i64 n, i64 value);
/// The multiples of `step`, from `step` on, next to `value` on both sides; {value} when it is one.
std::vector<i64> nearest_multiples(i64 step, i64 value);
/// "4 or 8".
std::string one_of(const std::vector<i64>& values);

}  // namespace mcpp
