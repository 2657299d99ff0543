// What is kept elsewhere segment by segment, and the memory through which segments come from a disk and go back
// (nn/offload/file_states.h).
#pragma once
#include <span>

#include "model/memory.h"

namespace mcpp {

/// What the buffers of FileStates come to take where segments of so many bytes come one after another, again and again:
/// as many as are there at a time, of which each is as long as it ever needs to be.
double file_buffer_bytes(std::span<const i64> segments);

/// An optimizer's states on a rank.
struct PlacedStates {
  double elsewhere = 0;  ///< share of their bytes that is; whole segments are, so that it is near the wanted one
  double buffers = 0;    ///< of a disk, in bytes
};
PlacedStates place_states(const ActivationSetup& setup, const StatesPerWeight& states, const RankShare& share,
                          const RankParameters& parameters);

}  // namespace mcpp
