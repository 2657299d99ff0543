// Predicted time of one microbatch in one layer, in the embedding and in the output, on one rank.
#pragma once
#include <string>
#include <utility>
#include <vector>

#include "model/config/block_spec.h"
#include "plan/cost/kernel_times.h"
#include "plan/cost/rank_cost_model.h"
#include "plan/cost/workload.h"

namespace mcpp {

/// One of the two branches of a layer, including its norm and its residual addition.
enum class LayerHalf { Attention, Mlp };
/// Returns the time of one branch; 0 if the block does not have it.
UnitTime half_time(const PredictionInput& job, const BlockSpec& block, LayerHalf half);
/// Returns the time of a layer. Selective recomputation is included, full recomputation is not.
UnitTime layer_time(const PredictionInput& job, const BlockSpec& block);
/// Returns the matrix products of a layer's forward pass on one rank, by name, for all layer kinds of the model.
std::vector<std::pair<std::string, ProductShape>> layer_products(const PredictionInput& job);
UnitTime embedding_time(const PredictionInput& job);
/// Returns the time of the output matrix and the loss.
UnitTime output_time(const PredictionInput& job);

// Predicted time of the experts of a layer for one microbatch on the busiest rank: router, token exchange, matrix
// products and the shared expert.

/// Returns the time of a layer with experts except its attention, norms and residuals.
UnitTime expert_time(const RankCostModel& rank);
/// Returns the seconds of the experts' activation function in forward.
double expert_activation_seconds(const RankCostModel& rank);
/// Returns the experts' matrix products in forward, by name.
std::vector<std::pair<std::string, ProductShape>> expert_products(const RankCostModel& rank);

}  // namespace mcpp
