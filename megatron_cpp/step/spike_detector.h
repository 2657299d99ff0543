// Which loss or gradient norm stands out from those before it, as llm.c's outlier detector has it (z-score).
#pragma once
#include <span>
#include <vector>

#include "base/types.h"

namespace mcpp {

/// Of the last finite steps, newest last; part of a checkpoint, so that a resumed run decides as one left alone.
struct SpikeHistory {
  std::vector<double> losses, grad_norms;

  /// Forgets the oldest beyond `window`.
  void add(double loss, double grad_norm, i64 window);

  bool operator==(const SpikeHistory&) const = default;
};

/// The largest value that is no spike: mean + z_score * standard deviation of the last `window` values. Infinity while
/// there are fewer, or when all are equal.
double spike_limit(std::span<const double> values, i64 window, double z_score);

}  // namespace mcpp
