// Checks of the training state: weights are finite and replicas agree.
#pragma once
#include <functional>
#include <string>

#include "megatron_cpp/step/training_state.h"
#include "tensor/checksum.h"

namespace mcpp {

// Check that prevents saving checkpoints with non-finite weights, from which no run could resume.

/// Returns the first weight with a NaN or infinity, such as "rank 1: decoder.final_layernorm.weight", or "" if all are
/// finite. Identical on all ranks. Reads each weight once. Collective.
std::string find_nonfinite_weight(const TrainingState& state, Communicator& world, Device& device);

// Detection of silent data corruption: data-parallel ranks must hold bitwise identical weights after every step; a
// difference indicates faulty memory or arithmetic. (Megatron-LM's check_param_hashes_across_dp_replicas.)

/// Returns a digest of a tensor.
using Fingerprint = std::function<std::string(const Tensor& value)>;

/// Compares the weights of all replicas. Collective; call it between two steps. If any differ, throws the same PeerLost
/// error on all ranks, naming the rank, its host and the first parameter. With only two replicas the error names both,
/// since the faulty one cannot be determined. An error of `fingerprint` on any rank is thrown on all. Takes one pass
/// over the weights on the host.
void check_weights_across_replicas(const TrainingState& state, ParallelState& parallel,
                                   const Fingerprint& fingerprint = checksum_of);

}  // namespace mcpp
