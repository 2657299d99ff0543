// Reaction to a step whose loss or gradient is non-finite or an outlier: training.nan_policy and spike_policy.
#pragma once
#include "megatron_cpp/config/sections/training_config.h"
#include "megatron_cpp/step/spike_detector.h"
#include "tensor/ops/ops.h"

namespace mcpp {

enum class StepAction { Continue, Warn, Skip, RollBack, Stop };

/// Returns the rule by which the queued update is applied or skipped; spike limits follow from the history.
StepRule make_step_rule(const TrainingConfig& config, const SpikeHistory& history);

/// Returns the action for the outcome of a step. Skip: nothing was changed and training continues. RollBack: nothing
/// was changed and training continues from its latest good checkpoint, without the samples read since.
StepAction choose_action(const TrainingConfig& config, StepStatus verdict);

}  // namespace mcpp
