#include "plan/worlds/training_cost.h"

#include "plan/hardware/real.h"
#include "plan/save_time.h"

namespace mcpp {

TrainingCost training_cost(const Job& job, double step_seconds, double tokens, Failures failures) {
  const i64 world = job.layout.world_size;
  if (failures.save_seconds == 0) failures.save_seconds = save_time(job).seconds;
  const double lost = failures.device_hours > 0 ? loss_by_failures(failures, world).lost : 0;
  const double hours = tokens / job.work.tokens() * step_seconds / 3600 / (1 - lost);
  return {.hours = hours, .device_hours = hours * real(world)};
}

}  // namespace mcpp
