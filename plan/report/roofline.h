// The operations of a forward pass against the limits of a device.
#pragma once
#include <string>
#include <vector>

#include "plan/cost/job.h"

namespace mcpp {

/// One operation of one rank and microbatch.
struct RooflineRow {
  std::string name, size;
  double seconds = 0;
  double flops = 0;  ///< 0: it computes next to nothing
  double bytes = 0;  ///< read and written, at least

  /// Operations for each byte: where it stands on the roofline.
  double intensity() const { return flops / bytes; }
};

/// The matrix products of a layer, its attention and the kernels between, and those of the embedding and the output.
std::vector<RooflineRow> roofline(const Job& job);
/// As a table, with the roof over each: the rate that the device attains, or its memory.
std::string roofline_text(const Job& job);

}  // namespace mcpp
