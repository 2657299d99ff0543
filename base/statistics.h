// Statistics of small samples.
#pragma once
#include <algorithm>
#include <cstddef>
#include <vector>

namespace mcpp {

/// Returns the median of `values`, which must not be empty; for an even count, the upper one.
inline double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace mcpp
