// What follows from a step whose loss or gradient is not finite or stands out: training.nan_policy and spike_policy.
#pragma once
#include "megatron_cpp/config/sections/training_config.h"
#include "megatron_cpp/step/spike_detector.h"
#include "tensor/ops/ops.h"

namespace mcpp {

enum class StepAction { GoOn, Warn, Skip, RollBack, Stop };

/// What decides about the next update, while it is still queued: spikes by what came before.
StepRule step_rule(const TrainingConfig& config, const SpikeHistory& history);

/// What to do when a step turned out so. Skip: nothing was changed, the training goes on. RollBack: nor was it, and the
/// training goes on from its newest good checkpoint, past the samples read since.
StepAction action_for(const TrainingConfig& config, StepVerdict verdict);

}  // namespace mcpp
