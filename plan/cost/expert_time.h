// How long the experts of a layer take of one microbatch, on the rank that most tokens come to: router, the way of
// tokens to their experts and back, products, and an expert that takes all tokens.
#pragma once
#include <string>
#include <utility>
#include <vector>

#include "plan/cost/rank_work.h"

namespace mcpp {

/// Of a layer with experts, what is not attention, norm or residual.
UnitTime expert_time(const RankWork& rank);
/// Of it, the activation in forward.
double expert_activation_seconds(const RankWork& rank);
/// Its matrix products in forward, by name.
std::vector<std::pair<std::string, ProductShape>> expert_products(const RankWork& rank);

}  // namespace mcpp
