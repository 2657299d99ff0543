// Expert capacity limits (Lepikhin et al., "GShard", 2021) and the choice of dropped tokens.
#pragma once
#include "comm/communicator.h"

namespace mcpp {

/// Returns the maximum number of `choices` that each of `num_experts` experts accepts: `factor` times choices /
/// num_experts, rounded up, but at most `choices`.
i64 expert_capacity(i64 choices, i64 num_experts, double factor);

/// Returns the maximum number of microbatches whose tokens an expert may receive, if `exchange` consecutive ranks
/// exchange tokens and `sample` consecutive ranks share each microbatch.
i64 max_microbatches(i64 exchange, i64 sample);

struct CapacityRule {
  Tensor experts;  ///< int32 [T, k]
  Tensor weights;  ///< [T, k]: the lowest are dropped first; if undefined, the last in order are dropped
  Tensor order;    ///< int32 [T]: position of each token in the microbatch; earlier tokens win ties
  i64 num_experts, capacity;
};
/// Returns the experts with dropped choices set to -1. `sample` is the group of ranks that share the microbatch, with
/// the same number of tokens on each; null if this rank has all tokens. Collective over `sample`. The result does not
/// depend on the layout.
Tensor drop_overflow(const CapacityRule& rule, Communicator* sample);

}  // namespace mcpp
