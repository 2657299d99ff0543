// Exponential moving average (EMA) of the weights, as PyTorch's torch.optim.swa_utils.AveragedModel with
// get_ema_multi_avg_fn() computes it.
#pragma once
#include <string_view>

#include "optimizer/update_rule.h"

namespace mcpp {

/// Name of the state with the averaged weights; fp32 (fp64 in an fp64 model), of the master weights.
inline constexpr std::string_view kEmaState = "ema";

/// Returns true if the optimizer keeps averaged weights.
inline bool has_ema(const OptimizerConfig& config) {
  return config.ema_decay > 0;
}

/// Updates the average of a part with its new weights, after UpdateRule::update(). The average equals the weights up to
/// update OptimizerConfig::ema_start; then average = decay average + (1 - decay) weights at every ema_interval-th
/// update. A skipped update (UpdateStep::factor is not finite) does not count.
void update_ema(UpdatePart& part, const OptimizerConfig& config, const UpdateStep& step);

/// Sets the average of a part to its weights.
void start_ema(UpdatePart& part);

/// Exchanges the weights of a part with their average and rounds the new weights to the model. A second call restores
/// both bitwise.
void swap_ema(UpdatePart& part);

}  // namespace mcpp
