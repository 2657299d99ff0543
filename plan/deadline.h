// The fewest devices that train on so many tokens in a time.
#pragma once
#include <optional>

#include "plan/scaling.h"
#include "plan/what_helps.h"

namespace mcpp {

struct Deadline {
  double tokens = 0, hours = 0;
  double price = 0;  ///< of an hour of a device; 0 = not looked at
};

struct TimedWorld {
  ScalingPoint point;
  double hours = 0;  ///< what failures lose included
};

/// Of the worlds 1, 2, 4, ... the first that is in time, or one in steps of an eighth between it and the one before.
/// Nothing when no number of devices that the links join is enough.
std::optional<TimedWorld> fewest_devices(const Hardware& hardware, const Implementation& program, const Workload& work,
                                         const SearchLimits& limits, const Deadline& deadline,
                                         const Failures& failures);

}  // namespace mcpp
