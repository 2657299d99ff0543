// Predicted time of one microbatch in one layer, in the embedding and in the output, on one rank. The time of a layer
// is the sum over the ops and messages that its modules record on the meta device (model/block_trace.h).
#pragma once
#include <string>
#include <vector>

#include "model/config/block_spec.h"
#include "plan/cost/kernel_times.h"
#include "plan/cost/rank_cost_model.h"
#include "plan/cost/workload.h"

namespace mcpp {

/// Returns the time of a block, or of a part of one, including its norms and residual additions, with the recipes of
/// layer `layer`. Selective recomputation is included, full recomputation is not.
UnitTime layer_time(const PredictionInput& input, const BlockSpec& block, i64 layer = 0);

/// GEMM of tokens with a weight in the forward pass.
struct WeightMatmul {
  std::string name;  ///< short_weight_name()
  MatmulShape shape;
  GemmType type;

  bool operator==(const WeightMatmul&) const = default;
};
/// Returns the distinct GEMMs in the forward passes of the layers and the output on one rank, except routers.
std::vector<WeightMatmul> forward_matmuls(const PredictionInput& input);
/// Returns the number of (query, key) pairs in which the query attends to a key of its document, over all heads and
/// samples.
double attended_pairs(const Workload& work, const AttentionShape& shape);
/// Returns the operations of attention's two GEMMs over attended_pairs().
double attention_flops(const Workload& work, const AttentionShape& shape);

UnitTime embedding_time(const PredictionInput& input);
/// Returns the time of the output part of a stage (StageContents::output_part()).
UnitTime output_time(const PredictionInput& input, const StageContents& stage);

}  // namespace mcpp
