// How a microbatch is cut over ranks so that attention costs each of them the same, whatever documents it is packed
// from.
#pragma once
#include <span>

#include "parallel/cp/sequence_cut.h"

namespace mcpp {

/// What attention over the samples of a microbatch costs depends on.
struct AttentionWork {
  i64 seq_length = 0, batch = 1;
  std::vector<i32> starts = {};   ///< [s, b]: where the document of each token begins; empty = at 0
  std::vector<i64> windows = {};  ///< positions that a query sees in each layer; 0 = all
};

/// Of these cuts the first with which no member of the ring has more than 1 % above the mean to compute, or the one
/// with the least for the slowest: consecutive positions, with which short documents and windows need few keys of
/// others; then 2 pieces for each member (for samples of one document the zigzag), 4, 8 and 16, dealt out by their
/// costs. Pieces are as long as a tile of scores at least, if there are more than 2.
SampleCut choose_cut(const SequenceCut& ranks, const AttentionWork& work);

/// What each member of the ring has to compute, in scores: those that its queries see, and as many as a tile has keys,
/// which are computed for nothing.
std::vector<i64> costs_of_members(const SequenceCut& ranks, const AttentionWork& work, const SampleCut& cut);

}  // namespace mcpp
