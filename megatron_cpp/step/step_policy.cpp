#include "megatron_cpp/step/step_policy.h"

#include <cmath>
#include <limits>

namespace mcpp {
namespace {

void push(std::vector<double>& values, double value, i64 window) {
  values.push_back(value);
  const auto surplus = static_cast<std::ptrdiff_t>(values.size()) - window;
  if (surplus > 0) values.erase(values.begin(), values.begin() + surplus);
}

}  // namespace

void SpikeHistory::add(double loss, double grad_norm, i64 window) {
  push(losses, loss, window);
  push(grad_norms, grad_norm, window);
}

double spike_limit(std::span<const double> values, i64 window, double z_score) {
  constexpr double kNone = std::numeric_limits<double>::infinity();
  if (static_cast<i64>(values.size()) < window) return kNone;
  values = values.last(static_cast<std::size_t>(window));
  const auto count = static_cast<double>(window);
  double sum = 0, squares = 0;
  for (const double value : values) sum += value;
  const double mean = sum / count;
  for (const double value : values) squares += (value - mean) * (value - mean);
  return squares > 0 ? mean + z_score * std::sqrt(squares / count) : kNone;
}

StepRule make_step_rule(const TrainingConfig& config, const SpikeHistory& history) {
  StepRule rule;
  if (config.spike_policy == SpikePolicy::Off) return rule;
  rule.max_loss = spike_limit(history.losses, config.spike_window, config.spike_z_score);
  rule.max_grad_norm = spike_limit(history.grad_norms, config.spike_window, config.spike_z_score);
  rule.should_skip_spikes = config.spike_policy != SpikePolicy::Warn;
  return rule;
}

StepAction choose_action(const TrainingConfig& config, StepStatus status) {
  if (status == StepStatus::Fine) return StepAction::Continue;
  if (status == StepStatus::NotFinite) {
    if (config.nan_policy == NanPolicy::Stop) return StepAction::Stop;
    return config.nan_policy == NanPolicy::Skip ? StepAction::Skip : StepAction::RollBack;
  }
  if (config.spike_policy == SpikePolicy::Skip) return StepAction::Skip;
  return config.spike_policy == SpikePolicy::Rollback ? StepAction::RollBack : StepAction::Warn;
}

}  // namespace mcpp
