#include "base/statistics.h"

#include <array>
#include <cmath>
#include <limits>

namespace mcpp {

double MeanEstimate::half_interval() const {
  return count > 1 ? student_t_quantile_975(count - 1) * standard_error : std::numeric_limits<double>::infinity();
}

MeanEstimate estimate_mean(std::span<const double> values) {
  const auto n = static_cast<double>(values.size());
  double sum = 0, squares = 0;
  for (const double value : values) sum += value;
  const double mean = sum / n;
  for (const double value : values) squares += (value - mean) * (value - mean);
  const double error = values.size() > 1 ? std::sqrt(squares / (n - 1) / n) : std::numeric_limits<double>::infinity();
  return {.count = std::ssize(values), .mean = mean, .standard_error = error};
}

double student_t_quantile_975(i64 degrees_of_freedom) {
  constexpr std::array kFirst{12.7062, 4.30265, 3.18245, 2.77645, 2.57058};
  if (degrees_of_freedom <= std::ssize(kFirst)) return kFirst.at(static_cast<std::size_t>(degrees_of_freedom - 1));
  // Expansion in powers of 1 / degrees of freedom around the normal distribution (Abramowitz and Stegun, 26.7.5).
  const double z = 1.959964, n = static_cast<double>(degrees_of_freedom), z2 = z * z;
  const double first = z * (z2 + 1) / 4;
  const double second = z * ((5 * z2 + 16) * z2 + 3) / 96;
  const double third = z * (((3 * z2 + 19) * z2 + 17) * z2 - 15) / 384;
  return z + first / n + second / (n * n) + third / (n * n * n);
}

}  // namespace mcpp
