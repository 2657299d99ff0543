// Load balancing of attention over the context-parallel ranks for samples packed from documents.
#pragma once
#include <span>

#include "parallel/cp/sequence_partition.h"

namespace mcpp {

/// Determinants of the attention cost of a microbatch.
struct AttentionWork {
  i64 seq_length = 0, batch = 1;
  std::vector<i32> starts = {};   ///< [s, b]: first position of each token's document; empty = 0
  std::vector<i64> windows = {};  ///< number of positions visible to a query, by layer; 0 = all
};

/// Returns the first of the following partitions whose most loaded ring member is at most 1 % above the mean, or
/// otherwise the one with the smallest maximum load: consecutive positions, which need few remote keys for short
/// documents and windows; then 2 pieces per member (the zigzag for samples of one document), 4, 8 and 16, assigned by
/// cost. With more than 2 pieces per member, pieces are at least as long as a tile of scores.
SamplePartition balance_sequence_partition(const SequencePartition& ranks, const AttentionWork& work);

/// Returns the cost of each ring member in scores: those visible to its queries, plus a tile width per query for masked
/// scores that are computed anyway.
std::vector<i64> member_costs(const SequencePartition& ranks, const AttentionWork& work,
                              const SamplePartition& partition);

}  // namespace mcpp
