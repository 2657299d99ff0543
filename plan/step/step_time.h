// Predicted time of a step and its breakdown.
#pragma once
#include <vector>

#include "parallel/pp/simulate.h"
#include "plan/cost/layer_time.h"
#include "plan/step/weight_counts.h"

namespace mcpp {

/// Time of a step in seconds. The parts belong to the busiest rank and add up to `seconds`.
struct StepTime {
  double seconds = 0;
  PassTime work;             ///< of all microbatches
  double turns = 0;          ///< waiting for a core used by another rank
  double bubble = 0;         ///< pipeline bubble, assuming that messages take no time
  double messages = 0;       ///< added by messages between stages
  double data_parallel = 0;  ///< exposed gradient reduction and weight gathering before and after the passes
  double optimizer = 0;
  double data = 0;  ///< samples from a local disk to the device; never hidden
  int rank = 0;     ///< pipeline rank with the most work

  double communication() const { return work.communication() + messages + data_parallel; }
};

/// Predicts a step. The layout must be one that layout_conflicts() accepts.
StepTime step_time(const PredictionInput& job);
/// Predicts the same step for each pipeline rank: its own work, and waiting for the rest of the time.
std::vector<StepTime> step_time_by_rank(const PredictionInput& job);
/// Returns a lower bound of step_time() that is much faster to compute: a rank's work, the first microbatch's way to
/// it, the last gradient's way back, and the update.
double step_time_lower_bound(const PredictionInput& job);

/// Pipeline timeline of the first microbatches of a step, for drawing.
struct StepTimeline {
  Schedule schedule;
  Timeline timeline;             ///< seconds
  std::vector<UnitTime> stages;  ///< breakdown of a microbatch's passes, by stage
};
StepTimeline step_timeline(const PredictionInput& job, i64 max_microbatches);

}  // namespace mcpp
