// Roofline: the operations of a forward pass against the limits of a device.
#pragma once
#include <string>
#include <vector>

#include "plan/cost/workload.h"

namespace mcpp {

/// One operation of one rank and microbatch.
struct RooflineRow {
  std::string name, size;
  double seconds = 0;
  double flops = 0;  ///< 0: negligible arithmetic
  double bytes = 0;  ///< minimum bytes read and written

  /// Returns the arithmetic intensity: operations per byte.
  double intensity() const { return flops / bytes; }
};

/// Returns the GEMMs of a layer, its attention and elementwise kernels, and the kernels of the embedding and the
/// output.
std::vector<RooflineRow> roofline(const PredictionInput& input);
/// Returns a table that names the limit of each row: the device's attained rate or its memory bandwidth.
std::string roofline_text(const PredictionInput& input);

}  // namespace mcpp
