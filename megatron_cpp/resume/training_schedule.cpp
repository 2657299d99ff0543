#include "megatron_cpp/resume/training_schedule.h"

#include <algorithm>

#include "megatron_cpp/config/stages.h"

namespace mcpp {
namespace {

/// Returns the configuration without the learning rate's schedule, whose lengths may belong to a stage.
OptimizerConfig weight_decay_only(OptimizerConfig config) {
  config.lr_decay_style = LrDecayStyle::Constant;
  config.lr_decay_iters = config.lr_warmup_iters = config.lr_wsd_decay_iters = 0;
  config.lr_decay_samples = config.lr_warmup_samples = config.lr_wsd_decay_samples = 0;
  config.lr_warmup_fraction = 0;
  return config;
}

}  // namespace

TrainingSchedule::TrainingSchedule(const Config& config)
    : has_own_start_(config.stage && config.stage->has_own_schedule),
      lr_(config.optimizer, lr_schedule_length(config)),
      weight_decay_(weight_decay_only(config.optimizer), run_length(config)) {}

double TrainingSchedule::lr(const TrainingProgress& progress) const {
  // After a rollback to an earlier stage, the run may have fewer trained iterations than at the start of this one.
  const i64 start = has_own_start_ ? progress.stage.trained_iterations : 0;
  return lr_.lr(lr_.position(std::max<i64>(progress.trained_iterations() - start, 0), progress.trained_samples));
}

double TrainingSchedule::weight_decay(const TrainingProgress& progress) const {
  return weight_decay_.weight_decay(weight_decay_.position(progress.trained_iterations(), progress.trained_samples));
}

}  // namespace mcpp
