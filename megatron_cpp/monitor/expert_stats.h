// What a training tells about its experts.
#pragma once
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "megatron_cpp/step/router_board.h"

namespace mcpp {

/// Of one layer in one step.
struct ExpertLayerStats {
  i64 layer = 0;
  std::vector<double> tokens;  ///< that chose each expert
  double largest_load = 0;     ///< of the busiest expert over the mean of all
  double dropped = 0;          ///< share of the choices that found their expert full
  double balance_loss = 0;     ///< without its coefficient; 1 when all are equally busy
  double z_loss = 0;           ///< without its coefficient
};

/// By layer; empty without experts. `tokens` of the global batch.
std::vector<ExpertLayerStats> expert_stats(const std::vector<LayerTally>& tallies, double tokens);
/// Over all layers: the largest load, and means.
ExpertLayerStats summary_of(const std::vector<ExpertLayerStats>& layers);

/// Finds experts that get nothing for long.
class IdleExperts {
 public:
  /// After each step: what is to be said about experts that have been idle for `steps` of them, once each time.
  explicit IdleExperts(i64 steps = 100) : steps_(steps) {}
  std::vector<std::string> add(const std::vector<LayerTally>& tallies);

 private:
  i64 steps_;
  std::map<std::pair<i64, std::size_t>, i64> idle_;  // steps, by layer and expert
};

}  // namespace mcpp
