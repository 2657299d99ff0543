#include "plan/scaling/training_cost.h"

#include "base/integer_math.h"
#include "plan/save_time.h"

namespace mcpp {

TrainingCost training_cost(const PredictionInput& job, double step_seconds, double tokens, Failures failures) {
  const i64 world = job.layout.world_size;
  if (failures.save_seconds == 0) failures.save_seconds = save_time(job).seconds;
  const double lost_fraction = failures.device_hours > 0 ? failure_loss(failures, world).lost_fraction : 0;
  const double hours = tokens / job.work.tokens() * step_seconds / 3600 / (1 - lost_fraction);
  return {.hours = hours, .device_hours = hours * real(world)};
}

}  // namespace mcpp
