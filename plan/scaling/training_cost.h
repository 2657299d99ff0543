// Cost of training: checkpoints, failures and the gains from better hardware.
#pragma once
#include <string>

#include "plan/cost/workload.h"
#include "plan/step/step_time.h"

namespace mcpp {

// Sensitivity of a step to better hardware, and losses due to failures.

struct Speedup {
  std::string change;   ///< "twice the bandwidth of infiniband"
  double fraction = 0;  ///< relative speedup of the step: 0.07 = 7 % faster
};

/// Returns the speedups for the same layout, greatest first.
std::vector<Speedup> upgrade_gains(const PredictionInput& input);

/// Device failures. Work since the last checkpoint is repeated after a failure.
struct Failures {
  double mtbf_hours = 0;       ///< mean time between failures of one device
  double save_seconds = 0;     ///< time that training waits for a checkpoint
  double restart_seconds = 0;  ///< time from a failure to the first new step
};
struct FailureLoss {
  /// Time between checkpoints that minimizes the loss: sqrt(2 x save x time between failures).
  double interval_seconds = 0;
  double failures_per_day = 0;  ///< failures of all devices together
  double lost_fraction = 0;     ///< fraction of the time spent on saves, restarts and repeated work; 1: no progress
};
/// Returns the loss at Young's interval (1974) for failures at exponentially distributed times, including failures
/// during saves and restarts (Daly 2006).
FailureLoss failure_loss(const Failures& failures, i64 world_size);

/// Predicted cost of a checkpoint.
struct SaveTime {
  double bytes = 0;          ///< total of all ranks, without replicas: weights, master weights and optimizer states
  double seconds = 0;        ///< time to write the checkpoint to the local disks of all ranks; 0 = disk speed unknown
  double stall_seconds = 0;  ///< time that training waits for the copy of an asynchronous save
};
SaveTime save_time(const PredictionInput& input);
std::string save_text(const PredictionInput& input, const SaveTime& save);

/// Cost of training on a number of tokens.
struct TrainingCost {
  double hours = 0;         ///< including losses due to failures; infinite if failures are more frequent than progress
  double device_hours = 0;  ///< summed over all devices
};

/// Returns the cost with steps of `step_seconds`. A checkpoint takes failures.save_seconds, or the predicted time if
/// that is 0.
TrainingCost training_cost(const PredictionInput& input, double step_seconds, double tokens, Failures failures);

}  // namespace mcpp
