// What numbers are after they travelled in a byte each, or rounded to bf16, one after another as the definition says.
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

/// To 8 bits of a fraction, in double precision: to the nearest, of two the even one. Subnormal numbers have as many as
/// lie above 2^-133; what is beyond the largest is infinite.
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
