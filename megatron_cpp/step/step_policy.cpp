#include "megatron_cpp/step/step_policy.h"

namespace mcpp {

StepRule make_step_rule(const TrainingConfig& config, const SpikeHistory& history) {
  StepRule rule;
  if (config.spike_policy == SpikePolicy::Off) return rule;
  rule.max_loss = spike_limit(history.losses, config.spike_window, config.spike_z_score);
  rule.max_grad_norm = spike_limit(history.grad_norms, config.spike_window, config.spike_z_score);
  rule.should_skip_spikes = config.spike_policy != SpikePolicy::Warn;
  return rule;
}

StepAction choose_action(const TrainingConfig& config, StepStatus verdict) {
  if (verdict == StepStatus::Fine) return StepAction::Continue;
  if (verdict == StepStatus::NotFinite) {
    if (config.nan_policy == NanPolicy::Stop) return StepAction::Stop;
    return config.nan_policy == NanPolicy::Skip ? StepAction::Skip : StepAction::RollBack;
  }
  if (config.spike_policy == SpikePolicy::Skip) return StepAction::Skip;
  return config.spike_policy == SpikePolicy::Rollback ? StepAction::RollBack : StepAction::Warn;
}

}  // namespace mcpp
