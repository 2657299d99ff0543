// Reference values of compressed messages: stored in one byte each or rounded to bf16, computed one by one from the
// definition.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <vector>

namespace mcpp::test {

inline std::vector<float> packed_and_back(std::vector<float> x) {
  constexpr std::size_t kBlock = 64;
  for (std::size_t begin = 0; begin < x.size(); begin += kBlock) {
    float largest = 0;
    bool is_finite = true;
    for (std::size_t i = begin; i < begin + kBlock; ++i) {
      is_finite &= std::isfinite(x[i]);
      largest = std::max(largest, std::abs(x[i]));
    }
    const float scale = largest / 127, steps = 127 / largest;
    for (std::size_t i = begin; i < begin + kBlock; ++i) {
      if (!is_finite)
        x[i] = std::numeric_limits<float>::quiet_NaN();
      else
        x[i] = largest < 0x1p-100F ? 0 : std::nearbyint(x[i] * steps) * scale;
    }
  }
  return x;
}

/// Rounds to 8 significant bits in double precision, to nearest even. Subnormal values have the bits above 2^-133;
/// values beyond the largest become infinite.
inline std::vector<float> rounded_to_bf16(std::vector<float> x) {
  for (float& number : x) {
    if (number == 0 || !std::isfinite(number)) continue;
    const int exponent = std::max(std::ilogb(number), -126);
    const double step = std::ldexp(1.0, exponent - 7), rounded = std::nearbyint(number / step) * step;
    number = std::abs(rounded) < 0x1p128 ? static_cast<float>(rounded)
                                         : std::copysign(std::numeric_limits<float>::infinity(), number);
  }
  return x;
}

}  // namespace mcpp::test
