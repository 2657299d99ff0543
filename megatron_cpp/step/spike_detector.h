// Outlier detection for losses and gradient norms by z-score, as in llm.c.
#pragma once
#include <span>
#include <vector>

#include "base/types.h"

namespace mcpp {

/// Values of the last finite steps, newest last. Saved in checkpoints so that a resumed run makes the same decisions.
struct SpikeHistory {
  std::vector<double> losses, grad_norms;

  /// Appends a step and drops values older than `window`.
  void add(double loss, double grad_norm, i64 window);

  bool operator==(const SpikeHistory&) const = default;
};

/// Returns the largest value that is not a spike: mean + z_score * standard deviation of the last `window` values.
/// Returns infinity if there are fewer values, or if all are equal.
double spike_limit(std::span<const double> values, i64 window, double z_score);

}  // namespace mcpp
