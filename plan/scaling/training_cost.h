// Cost of training on a number of tokens.
#pragma once
#include "plan/cost/prediction_input.h"
#include "plan/sensitivity.h"

namespace mcpp {

struct TrainingCost {
  double hours = 0;         ///< including losses by failures; infinite if failures are more frequent than progress
  double device_hours = 0;  ///< summed over all devices
};

/// Returns the cost with steps of `step_seconds`. A checkpoint takes failures.save_seconds, or the predicted time if
/// that is 0.
TrainingCost training_cost(const PredictionInput& job, double step_seconds, double tokens, Failures failures);

}  // namespace mcpp
