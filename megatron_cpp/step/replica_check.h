// Silent data corruption: data-parallel ranks hold the same weights, bit for bit, after every step; one that does not
// has been let down by its memory or its arithmetic. (Megatron-LM's check_param_hashes_across_dp_replicas.)
#pragma once
#include <functional>
#include <string>

#include "megatron_cpp/step/training_state.h"

namespace mcpp {

/// What stands for the numbers of a tensor.
using Fingerprint = std::function<std::string(const Tensor& value)>;
std::string checksum_of(const Tensor& value);

/// Compares the weights of the ranks that should hold the same. Called by all ranks between two steps; all throw the
/// same PeerLost error when some differ, naming the rank, its host and the first parameter. With two replicas nobody
/// can tell which is right, and the error names both. An error of `fingerprint` on some rank is thrown by all, too. One
/// pass over the weights on the host.
void check_weights_across_replicas(const TrainingState& state, ParallelState& parallel,
                                   const Fingerprint& fingerprint = checksum_of);

}  // namespace mcpp
