// What numbers are after they travelled in a byte each, one after another as the definition says.
#pragma once
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

}  // namespace mcpp::test
