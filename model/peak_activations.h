// Peak activation memory of a rank, from a simulation of its schedule. The moments at which the peak may occur depend
// only on the schedule, so they can be reused for many models and setups.
#pragma once
#include <vector>

#include "model/layer_memory.h"

namespace mcpp {

/// Message from another rank, in order of size: none, the result of a layer or its gradient, or a message between the
/// last two stages, which may consist of several states (StageContents::sends_predictions()).
enum class ReceivedMessage : u8 { None, Hidden, BetweenLastStages };

/// Numbers of microbatches in flight during a backward pass of the rank.
struct PeakCandidate {
  int chunk = 0;                                     ///< chunk of the pass
  int forward_chunk = -1;                            ///< chunk of the forward pass that runs together with it; -1: none
  bool delays_wgrad = false;                         ///< the pass delays its weight gradients
  ReceivedMessage receives = ReceivedMessage::None;  ///< input of the next pass, received at the same time
  ReceivedMessage also_receives = ReceivedMessage::None;  ///< input of the second pass, if the next is a pair
  std::vector<i64> saved = {};    ///< microbatches between forward and backward by chunk, including this one
  std::vector<i64> waiting = {};  ///< microbatches with delayed weight gradients by chunk
};

/// Moments at which the peak may occur: those where no other moment has at least as many microbatches in flight in
/// every chunk.
struct PeakCandidates {
  std::vector<PeakCandidate> in_backward;
  std::vector<std::vector<i64>> after_forward;  ///< microbatches between forward and backward by chunk
};
PeakCandidates find_peak_candidates(const Schedule& schedule, int rank);

/// Returns the peak for the moments of this rank's schedule.
PeakActivations peak_activations(LayerSizes& sizes, const RankMemorySpec& share, const PeakCandidates& moments);

}  // namespace mcpp
