// Offloaded segments of optimizer states, and buffers for reading and writing them on disk (nn/offload/file_states.h).
#pragma once
#include "model/memory.h"

namespace mcpp {

/// Optimizer states on a rank.
struct StateOffloadPlan {
  double offloaded =
      0;  ///< offloaded fraction of their bytes; close to the requested one because only whole segments are offloaded
  double buffers = 0;  ///< bytes of disk I/O buffers
};
StateOffloadPlan plan_state_offload(const ActivationSetup& setup, const StatesPerWeight& states,
                                    const RankMemorySpec& share, const RankParameters& parameters);

}  // namespace mcpp
