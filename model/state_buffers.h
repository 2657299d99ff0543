// The memory through which an optimizer's states come from a disk and go back (nn/offload/file_states.h).
#pragma once
#include "model/memory.h"

namespace mcpp {

/// Of a rank, after the steps in which it grows; 0 where no states are on a disk.
double state_buffer_bytes(const ActivationSetup& setup, const StatesPerWeight& states, const RankShare& share,
                          const RankParameters& parameters);

}  // namespace mcpp
