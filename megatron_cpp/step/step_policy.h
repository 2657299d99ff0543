// Reaction to a step whose loss or gradient is non-finite or an outlier: training.nan_policy and spike_policy.
#pragma once
#include <span>
#include <vector>

#include "base/types.h"
#include "megatron_cpp/config/sections/training_config.h"
#include "tensor/ops/ops.h"

namespace mcpp {

// Outlier detection for losses and gradient norms by z-score, as in llm.c.

/// Values of the last finite steps, newest last. Saved in checkpoints so that a resumed run makes the same decisions.
struct SpikeHistory {
  std::vector<double> losses, grad_norms;

  /// Appends a step and drops values older than `window`.
  void add(double loss, double grad_norm, i64 window);

  bool operator==(const SpikeHistory&) const = default;
};

/// Returns the largest value that is not a spike: mean + z_score * standard deviation of the last `window` values.
/// Returns infinity if there are fewer values, or if all are equal.
double spike_limit(std::span<const double> values, i64 window, double z_score);

enum class StepAction { Continue, Warn, Skip, RollBack, Stop };

/// Returns the rule that decides whether the queued update is applied; spike limits follow from the history.
StepRule make_step_rule(const TrainingConfig& config, const SpikeHistory& history);

/// Returns the action for the outcome of a step. Skip: nothing was changed and training continues. RollBack: nothing
/// was changed, and training continues from the latest good checkpoint and skips the samples read since then.
StepAction choose_action(const TrainingConfig& config, StepStatus status);

}  // namespace mcpp
