// Predicted time of the experts of a layer for one microbatch on the busiest rank: router, token exchange, matrix
// products and the shared expert.
#pragma once
#include <string>
#include <utility>
#include <vector>

#include "plan/cost/rank_cost_model.h"

namespace mcpp {

/// Returns the time of a layer with experts except its attention, norms and residuals.
UnitTime expert_time(const RankCostModel& rank);
/// Returns the seconds of its activation function in forward.
double expert_activation_seconds(const RankCostModel& rank);
/// Returns its matrix products in forward, by name.
std::vector<std::pair<std::string, ProductShape>> expert_products(const RankCostModel& rank);

}  // namespace mcpp
