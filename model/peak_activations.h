// Peak activation memory of a rank, from a dry run of its schedule. The candidate moments of the peak depend only on
// the schedule, so they can be reused for many models and setups.
#pragma once
#include <vector>

#include "model/layer_memory.h"

namespace mcpp {

/// Moment in a backward pass of the rank, described by the microbatches in flight.
struct PeakCandidate {
  int chunk = 0;                  ///< chunk of the pass
  bool delays_wgrad = false;      ///< delays its weight gradients
  bool receives = false;          ///< concurrently receives the input of the next pass
  std::vector<i64> kept = {};     ///< microbatches between forward and backward by chunk, including this one
  std::vector<i64> waiting = {};  ///< microbatches with delayed weight gradients by chunk
};

/// Candidates for the peak: the moments at which the number of microbatches in flight, by chunk, is not dominated by
/// that of another moment.
struct PeakCandidates {
  std::vector<PeakCandidate> in_backward;
  std::vector<std::vector<i64>> after_forward;  ///< microbatches between forward and backward by chunk
};
PeakCandidates find_peak_candidates(const Schedule& schedule, int rank);

/// `moments` must be those of the rank in its schedule.
PeakActivations peak_activations(LayerSizes& sizes, const RankMemorySpec& share, const PeakCandidates& moments);

}  // namespace mcpp
