#include "megatron_cpp/monitor/expert_stats.h"

#include <algorithm>
#include <numeric>

#include "base/strings.h"

namespace mcpp {

std::vector<ExpertLayerStats> expert_stats(const std::vector<LayerRoutingStats>& stats, double tokens) {
  std::vector<ExpertLayerStats> layers;
  for (const LayerRoutingStats& of_layer : stats) {
    const RoutingCounts& tally = of_layer.tally;
    const double choices = std::accumulate(tally.tokens.begin(), tally.tokens.end(), 0.0);
    if (choices == 0) continue;  // the step was aborted
    const double mean = choices / static_cast<double>(tally.tokens.size());
    layers.push_back({.layer = of_layer.layer,
                      .tokens = tally.tokens,
                      .max_load = std::ranges::max(tally.tokens) / mean,
                      .dropped = tally.dropped / choices,
                      .balance_loss = tally.balance_loss / tokens,
                      .z_loss = tally.z_loss / tokens});
  }
  return layers;
}

ExpertLayerStats summarize(const std::vector<ExpertLayerStats>& layers) {
  ExpertLayerStats sum;
  const auto count = static_cast<double>(layers.size());
  for (const ExpertLayerStats& layer : layers) {
    sum.max_load = std::max(sum.max_load, layer.max_load);
    sum.dropped += layer.dropped / count;
    sum.balance_loss += layer.balance_loss / count;
    sum.z_loss += layer.z_loss / count;
  }
  return sum;
}

std::vector<std::string> IdleExpertDetector::add(const std::vector<LayerRoutingStats>& stats) {
  std::vector<std::string> warnings;
  for (const LayerRoutingStats& of_layer : stats) {
    for (std::size_t expert = 0; expert < of_layer.tally.tokens.size(); ++expert) {
      i64& steps = idle_[{of_layer.layer, expert}];
      steps = of_layer.tally.tokens[expert] > 0 ? 0 : steps + 1;
      if (steps == steps_)
        warnings.push_back(str("expert ", expert, " of layer ", of_layer.layer, " has got no token for ", steps_,
                               " iterations; a larger model.moe_aux_loss_coeff, or moe_router_enable_expert_bias, "
                               "would bring it back"));
    }
  }
  return warnings;
}

}  // namespace mcpp
