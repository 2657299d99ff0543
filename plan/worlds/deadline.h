// The fewest devices that train on so many tokens in a time.
#pragma once
#include <optional>

#include "plan/worlds/scaling.h"

namespace mcpp {

struct Deadline {
  double tokens = 0, hours = 0;
  double price = 0;  ///< of an hour of a device; 0 = not looked at
};

struct FewestDevices {
  std::optional<ScalingPoint> found;
  /// Where nothing is found: of the worlds that were looked at and in which something fits, the one that takes fewest
  /// hours; and the hours that no layout of all devices that the links join goes below, 0 where that is not known.
  std::optional<ScalingPoint> fastest;
  double least_hours = 0;
};

/// Of the worlds 1, 2, 4, ... the first that is in time, or one in steps of an eighth between it and the one before.
/// With limits that ask for a factor of the world that is no power of two, of its multiples.
FewestDevices fewest_devices(const Hardware& hardware, const Implementation& program, const Workload& work,
                             const SearchLimits& limits, const Deadline& deadline, const Failures& failures);

}  // namespace mcpp
