// Normally distributed random numbers for the initialization of weights.
#pragma once
#include <span>

#include "base/types.h"

namespace mcpp {

/// Sets out[i] to philox_normal(key, first + i), bitwise. Uses the vectors of the processor.
void draw_normal(u64 key, u64 first, std::span<double> out);

}  // namespace mcpp
