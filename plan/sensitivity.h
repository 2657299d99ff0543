// Sensitivity of a step to better hardware, and losses by failures.
#pragma once
#include "plan/step/step_time.h"

namespace mcpp {

struct Speedup {
  std::string change;  ///< "twice the bandwidth of infiniband"
  double part = 0;     ///< relative speedup of the step: 0.07 = 7 % faster
};

/// Returns the gains for the same layout, the greatest first.
std::vector<Speedup> upgrade_gains(const PredictionInput& job);

/// Device failures. Unsaved work is repeated.
struct Failures {
  double device_hours = 0;     ///< mean time between failures of one device
  double save_seconds = 0;     ///< that training waits for a checkpoint
  double restart_seconds = 0;  ///< from a failure to the first new step
};
struct FailureLoss {
  double interval_seconds = 0;  ///< between checkpoints, minimizing the loss: sqrt(2 x save x time between failures)
  double failures_per_day = 0;  ///< of all devices together
  double lost_fraction = 0;     ///< fraction of the time spent on saves, restarts and repeated work
};
/// Returns the loss by Young (1974), with Daly's (2006) first-order terms.
FailureLoss failure_loss(const Failures& failures, i64 world_size);

}  // namespace mcpp
