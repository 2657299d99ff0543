// Silent data corruption: data-parallel ranks hold the same weights, bit for bit, after every step; one that does not
// has been let down by its memory or its arithmetic. (Megatron-LM's check_param_hashes_across_dp_replicas.)
#pragma once
#include "megatron_cpp/training_state.h"

namespace mcpp {

/// Compares the weights of the ranks that should hold the same. Called by all ranks between two steps; all throw the
/// same PeerLost error when some differ, naming the rank, its host and the first parameter. With two replicas nobody
/// can tell which is right, and the error names both. One pass over the weights on the host.
void check_weights_across_replicas(const TrainingState& state, ParallelState& parallel);

}  // namespace mcpp
