// Number of tokens that experts receive on the meta device, where choices of experts have no values.
#pragma once
#include <vector>

#include "parallel/ep/expert_parallel.h"

namespace mcpp {

/// Number of choices of a rank: each of its tokens chooses `topk` experts.
struct ChoiceSizes {
  i64 tokens, topk, num_experts;
};

/// Returns the assumed number of choices of each rank of the exchange for each expert, [ranks, num_experts]. The
/// numbers of one rank for several experts differ by at most one, and so do the numbers of several ranks for an expert
/// with a limit.
std::vector<i32> assumed_counts(const ChoiceSizes& sizes, const ExpertParallel& parallel);

/// Returns the assumed number of rows of each expert of this rank, from all ranks of the exchange.
std::vector<i64> assumed_rows(const ChoiceSizes& sizes, const ExpertParallel& parallel);

/// Returns the probability that a token that chooses `topk` of `num_experts` experts at random chooses at least one of
/// `count` consecutive experts. With groups, all experts are in `group_topk` of `num_groups` groups.
double probability_of_choice(i64 topk, i64 num_experts, i64 count, i64 num_groups, i64 group_topk);

/// Returns the assumed number of tokens of each rank that choose at least one of `count` consecutive experts.
/// `has_local_experts`: these include all experts of this rank.
i64 assumed_tokens(const ChoiceSizes& sizes, const ExpertParallel& parallel, i64 count, bool has_local_experts);

}  // namespace mcpp
