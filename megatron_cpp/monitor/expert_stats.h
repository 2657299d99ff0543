// Statistics of experts during training.
#pragma once
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "megatron_cpp/step/router_stats.h"

namespace mcpp {

/// Statistics of one layer in one step.
struct ExpertLayerStats {
  i64 layer = 0;
  std::vector<double> tokens;  ///< [experts] number of tokens routed to each
  double max_load = 0;         ///< load of the busiest expert relative to the mean
  double dropped = 0;          ///< fraction of the choices dropped because the expert was full
  double balance_loss = 0;     ///< without its coefficient; 1 for perfect balance
  double z_loss = 0;           ///< without its coefficient
};

/// Returns the statistics of each layer; empty without experts. `tokens` is the size of the global batch.
std::vector<ExpertLayerStats> expert_stats(const std::vector<LayerRoutingStats>& stats, double tokens);
/// Returns the summary over all layers: the largest load, and means otherwise.
ExpertLayerStats summarize(const std::vector<ExpertLayerStats>& layers);

/// Detector for experts that receive no tokens over many steps.
class IdleExpertDetector {
 public:
  /// Each add() counts a step and returns a message for every expert that has been idle for `steps` of them, once per
  /// idle period.
  explicit IdleExpertDetector(i64 steps = 100) : steps_(steps) {}
  std::vector<std::string> add(const std::vector<LayerRoutingStats>& stats);

 private:
  i64 steps_;
  std::map<std::pair<i64, std::size_t>, i64> idle_;  // idle steps by layer and expert
};

}  // namespace mcpp
