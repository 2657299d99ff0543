// A checkpoint with weights that are not numbers must never become the one that runs resume from.
#pragma once
#include <string>

#include "megatron_cpp/step/training_state.h"

namespace mcpp {

/// "rank 1: decoder.final_layernorm.weight" for a weight that holds NaN or infinity, the same text on every rank; empty
/// when there is none. Reads each weight once. Called by all ranks.
std::string weight_that_is_not_finite(const TrainingState& state, Communicator& world, Device& device);

}  // namespace mcpp
