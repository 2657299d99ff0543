// The most that activations take on a rank: its part of the schedule, run on paper. Which moments of it may have the
// most depends on the schedule alone, so that whoever asks about many models and setups looks for them once.
#pragma once
#include <vector>

#include "model/layer_memory.h"

namespace mcpp {

/// A backward pass of the rank, and what is in flight as it runs.
struct FullMoment {
  int chunk = 0;                  ///< whose pass it is
  bool puts_off = false;          ///< its weight gradients
  bool receives = false;          ///< the input of the next pass meanwhile
  std::vector<i64> kept = {};     ///< of each chunk, microbatches between forward and backward, this one included
  std::vector<i64> waiting = {};  ///< of each chunk, those whose weight gradients wait
};

/// The moments with the most in flight: at every other of the same kind no chunk has more than at one of these.
struct FullestMoments {
  std::vector<FullMoment> in_backward;
  std::vector<std::vector<i64>> after_forward;  ///< of each chunk, microbatches between forward and backward
};
FullestMoments fullest_moments(const Schedule& schedule, int rank);

/// `moments`: of the rank, by its schedule.
PeakActivations peak_activations(LayerSizes& sizes, const RankShare& share, const FullestMoments& moments);

}  // namespace mcpp
