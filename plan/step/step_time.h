// How long a step takes, and where the time goes.
#pragma once
#include <vector>

#include "parallel/pp/simulate.h"
#include "plan/cost/layer_time.h"
#include "plan/step/weight_counts.h"

namespace mcpp {

/// Seconds. The parts are those of the rank that works longest, and add up to `seconds`.
struct StepTime {
  double seconds = 0;
  PassTime work;             ///< of all microbatches
  double turns = 0;          ///< waiting for a core that another rank has
  double bubble = 0;         ///< waiting in the pipeline, were messages free
  double messages = 0;       ///< what messages between stages add
  double data_parallel = 0;  ///< gradients and weights after and before the passes, where nothing hides them
  double optimizer = 0;
  double data = 0;  ///< samples from a local disk to the device; nothing hides it
  int rank = 0;     ///< of the pipeline, that works longest

  double communication() const { return work.communication() + messages + data_parallel; }
};

/// The layout must be one that layout_conflicts() accepts.
StepTime step_time(const Job& job);
/// The same step on each rank of the pipeline: what it works itself, and waits for the rest of the time.
std::vector<StepTime> step_time_by_rank(const Job& job);
/// A bound that step_time() never goes below, much quicker to compute: what a rank works, from the first microbatch's
/// coming to the last gradient's going back, and the update.
double least_seconds(const Job& job);

/// The pipeline's time line for so many microbatches of a step, or fewer as the schedule needs; to be drawn.
struct DrawnStep {
  Schedule schedule;
  Timeline timeline;             ///< seconds
  std::vector<UnitTime> stages;  ///< what the passes of a microbatch through each spend them on
};
DrawnStep drawn_step(const Job& job, i64 most_microbatches);

}  // namespace mcpp
