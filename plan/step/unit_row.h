// What a microbatch waits for as ZeRO 2 and 3 gather the weights and sum the gradients of the units that it passes, one
// after another: embedding, layers, output.
#pragma once
#include <vector>

#include "plan/step/weight_traffic.h"

namespace mcpp {

/// Of a row in the order of forward passes.
struct RowUnit {
  double forward = 0, backward = 0;  ///< seconds of its own passes
  UnitTraffic traffic;
};

/// Seconds that passes through a row take longer.
struct RowWaits {
  double forward = 0, backward = 0;
  double ends = 0;  ///< and the first forward and the last backward pass of a step together, beyond that
};

/// Weights come while the unit before computes, gradients go while the next one does. Nothing is before the first unit,
/// and what forward used last is gathered again for backward. The last unit's gradients go beside the next microbatch's
/// forward pass.
RowWaits waits_of(const std::vector<RowUnit>& row, const WeightTraffic& traffic);

}  // namespace mcpp
