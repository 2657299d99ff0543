// What a step would gain from better hardware, and lose by failures.
#pragma once
#include "plan/step/step_time.h"

namespace mcpp {

struct Gain {
  std::string change;  ///< "twice the bandwidth of infiniband"
  double part = 0;     ///< of the step's speed: 0.07 = 7 % more
};

/// For the same layout, the greatest gain first.
std::vector<Gain> what_helps(const Job& job);

/// Devices fail now and then; what was not saved is done again.
struct Failures {
  double device_hours = 0;     ///< mean time between failures of one device
  double save_seconds = 0;     ///< that the training waits for a checkpoint
  double restart_seconds = 0;  ///< from a failure to the first new step
};
struct FailureLoss {
  double interval_seconds = 0;  ///< between checkpoints, with the least loss: sqrt(2 x save x time between failures)
  double failures_per_day = 0;  ///< of all devices together
  double lost = 0;              ///< part of the time that goes into saves, restarts and what is done again
};
/// By Young (1974), with Daly's (2006) first-order terms.
FailureLoss loss_by_failures(const Failures& failures, i64 world_size);

}  // namespace mcpp
