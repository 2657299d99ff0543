// Conversion of integer counts to floating point.
#pragma once
#include "base/types.h"

namespace mcpp {

constexpr double real(i64 n) {
  return static_cast<double>(n);
}

}  // namespace mcpp
