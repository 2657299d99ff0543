// Statistics of small samples.
#pragma once
#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

#include "base/types.h"

namespace mcpp {

/// Returns the median of `values`, which must not be empty; for an even count, the upper one.
inline double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

/// Mean of a sample, as an estimate of the mean of its distribution.
struct MeanEstimate {
  i64 count = 0;
  double mean = 0;
  double standard_error = 0;  ///< sample standard deviation / sqrt(count); infinite for a single value

  /// Returns half the width of the 95 % confidence interval of the mean, by Student's t distribution.
  double half_interval() const;
};

/// Estimates the mean of the distribution of `values`, which must not be empty.
MeanEstimate estimate_mean(std::span<const double> values);

/// Returns the 97.5 % quantile of Student's t distribution with at least 1 degree of freedom, with a relative error of
/// at most 1e-3.
double student_t_quantile_975(i64 degrees_of_freedom);

}  // namespace mcpp
