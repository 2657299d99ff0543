// What is kept elsewhere segment by segment, and the memory through which segments come from a disk and go back
// (nn/offload/file_states.h).
#pragma once
#include "model/memory.h"

namespace mcpp {

/// An optimizer's states on a rank.
struct PlacedStates {
  double elsewhere = 0;  ///< share of their bytes that is; whole segments are, so that it is near the wanted one
  double buffers = 0;    ///< of a disk, in bytes
};
PlacedStates place_states(const ActivationSetup& setup, const StatesPerWeight& states, const RankShare& share,
                          const RankParameters& parameters);

}  // namespace mcpp
