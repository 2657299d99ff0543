// Learning rate and weight decay of a training run.
#pragma once
#include "megatron_cpp/config/config.h"
#include "megatron_cpp/resume/checkpointing.h"
#include "optimizer/lr_schedule.h"

namespace mcpp {

/// Learning rate and weight decay of the next step. In a stage with its own schedule, the learning rate depends on the
/// steps of the stage; otherwise both depend on the steps of the run.
class TrainingSchedule {
 public:
  explicit TrainingSchedule(const Config& config);

  double lr(const TrainingProgress& progress) const;
  double weight_decay(const TrainingProgress& progress) const;

 private:
  bool has_own_start_;
  LrSchedule lr_, weight_decay_;
};

}  // namespace mcpp
