// Connection of process groups before training on GPUs starts.
#pragma once
#include "parallel/state.h"

namespace mcpp {

/// Connects the groups that every step uses (connect_collectives) before any GPU waits for other ranks. Collective.
void connect_groups(const ParallelState& parallel, Device& device);

}  // namespace mcpp
