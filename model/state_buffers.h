// Offloaded segments of optimizer states, and buffers for reading and writing them on disk (nn/offload/file_states.h).
#pragma once
#include "model/memory.h"

namespace mcpp {

/// Optimizer states on a rank.
struct PlacedStates {
  double elsewhere =
      0;  ///< offloaded fraction of their bytes; close to the requested one because only whole segments are offloaded
  double buffers = 0;  ///< bytes of disk I/O buffers
};
PlacedStates place_states(const ActivationSetup& setup, const StatesPerWeight& states, const RankShare& share,
                          const RankParameters& parameters);

}  // namespace mcpp
