// What it takes to train on so many tokens.
#pragma once
#include "plan/cost/job.h"
#include "plan/what_helps.h"

namespace mcpp {

struct TrainingCost {
  double hours = 0;         ///< what failures lose included; infinite where they come faster than anything is done
  double device_hours = 0;  ///< of all devices together
};

/// With steps of so many seconds. A checkpoint takes failures.save_seconds, or where these are 0 as long as is
/// predicted.
TrainingCost training_cost(const Job& job, double step_seconds, double tokens, Failures failures);

}  // namespace mcpp
