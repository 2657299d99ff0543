// Experts that take no more than so many tokens (Lepikhin et al., "GShard", 2021): who is left out.
#pragma once
#include <span>

#include "comm/communicator.h"

namespace mcpp {

/// The most of `choices` that each of `num_experts` takes: `factor` times its even share, rounded up, or all.
i64 expert_capacity(i64 choices, i64 num_experts, double factor);

/// Of how many microbatches an expert may see tokens, when `exchange` ranks side by side exchange theirs and `sample`
/// ranks side by side have each microbatch.
i64 most_microbatches(i64 exchange, i64 sample);

struct CapacityRule {
  Tensor experts;              ///< int32 [T, k]
  Tensor weights;              ///< [T, k]: those with the lowest are left out; undefined = the last ones
  std::span<const i32> order;  ///< [T]: where each token stands in the microbatch; between equals the first one stays
  i64 num_experts, capacity;
};
/// The experts, -1 where a choice was left out. `sample`: the ranks that have the other tokens of the microbatch, as
/// many each, which call this together; null = there are none. So the same are left out at every layout.
Tensor drop_overflow(const CapacityRule& rule, Communicator* sample);

}  // namespace mcpp
