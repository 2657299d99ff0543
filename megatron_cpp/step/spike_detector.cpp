#include "megatron_cpp/step/spike_detector.h"

#include <cmath>
#include <limits>

namespace mcpp {
namespace {

void push(std::vector<double>& values, double value, i64 window) {
  values.push_back(value);
  const auto surplus = static_cast<std::ptrdiff_t>(values.size()) - window;
  if (surplus > 0) values.erase(values.begin(), values.begin() + surplus);
}

}  // namespace

void SpikeHistory::add(double loss, double grad_norm, i64 window) {
  push(losses, loss, window);
  push(grad_norms, grad_norm, window);
}

double spike_limit(std::span<const double> values, i64 window, double z_score) {
  constexpr double kNone = std::numeric_limits<double>::infinity();
  if (static_cast<i64>(values.size()) < window) return kNone;
  values = values.last(static_cast<std::size_t>(window));
  const auto count = static_cast<double>(window);
  double sum = 0, squares = 0;
  for (const double value : values) sum += value;
  const double mean = sum / count;
  for (const double value : values) squares += (value - mean) * (value - mean);
  return squares > 0 ? mean + z_score * std::sqrt(squares / count) : kNone;
}

}  // namespace mcpp
