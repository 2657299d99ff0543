// Exposed communication of a microbatch in ZeRO 2 and 3, which gather the weights and reduce the gradients of one unit
// after another: embedding, layers, output.
#pragma once
#include <vector>

#include "plan/step/weight_traffic.h"

namespace mcpp {

/// Compute and communication of a unit. Units are in the order of forward passes.
struct UnitCost {
  double forward = 0, backward = 0;  ///< seconds of its own passes
  UnitTraffic traffic;
};

/// Seconds that communication adds to the passes through all units.
struct ExposedComm {
  double forward = 0, backward = 0;
  double boundary_exposed =
      0;  ///< additional seconds of the first forward and the last backward pass of a step together
};

/// Returns the exposed communication. Weights are gathered while the previous unit computes, and gradients are reduced
/// while the next one does. Nothing hides the first unit's gather, and the weights that forward used last are gathered
/// again for backward. The last unit's gradients are reduced during the next microbatch's forward pass.
ExposedComm exposed_comm(const std::vector<UnitCost>& row, const WeightTraffic& traffic);

}  // namespace mcpp
