#include "megatron_cpp/step/step_policy.h"

namespace mcpp {

StepRule step_rule(const TrainingConfig& config, const SpikeHistory& history) {
  StepRule rule;
  if (config.spike_policy == SpikePolicy::Off) return rule;
  rule.most_loss = spike_limit(history.losses, config.spike_window, config.spike_z_score);
  rule.most_grad_norm = spike_limit(history.grad_norms, config.spike_window, config.spike_z_score);
  rule.skips_spikes = config.spike_policy != SpikePolicy::Warn;
  return rule;
}

StepAction action_for(const TrainingConfig& config, StepVerdict verdict) {
  if (verdict == StepVerdict::Fine) return StepAction::GoOn;
  if (verdict == StepVerdict::NotFinite) {
    if (config.nan_policy == NanPolicy::Stop) return StepAction::Stop;
    return config.nan_policy == NanPolicy::Skip ? StepAction::Skip : StepAction::RollBack;
  }
  if (config.spike_policy == SpikePolicy::Skip) return StepAction::Skip;
  return config.spike_policy == SpikePolicy::Rollback ? StepAction::RollBack : StepAction::Warn;
}

}  // namespace mcpp
