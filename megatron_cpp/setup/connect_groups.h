// What ranks on GPUs prepare for one another before a training begins.
#pragma once
#include "parallel/state.h"

namespace mcpp {

/// Connects the groups that every step uses (connect_collectives), here where nothing on the GPUs waits for other ranks
/// yet. Called by all ranks.
void connect_groups(const ParallelState& parallel, Device& device);

}  // namespace mcpp
