// Search for the fewest devices that train on a number of tokens within a deadline.
#pragma once
#include <optional>

#include "plan/scaling/scaling.h"

namespace mcpp {

struct Deadline {
  double tokens = 0, hours = 0;
  double price = 0;  ///< per device hour; 0 = ignored
};

struct FewestDevices {
  std::optional<ScalingPoint> found;
  /// If nothing is found: the point with the fewest hours among the world sizes that were tried and fit, and a lower
  /// bound in hours with all devices that the links join (0 if not known).
  std::optional<ScalingPoint> fastest;
  double min_hours = 0;
};

/// Returns the first of the world sizes 1, 2, 4, ... that meets the deadline, or one in steps of an eighth between it
/// and the previous one. If the limits require an odd factor of the world size, its multiples are tried instead.
FewestDevices find_fewest_devices(const Hardware& hardware, const KernelTraits& program, const Workload& work,
                                  const SearchLimits& limits, const Deadline& deadline, const Failures& failures);

}  // namespace mcpp
