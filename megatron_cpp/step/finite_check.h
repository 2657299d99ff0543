// Check that prevents checkpoints with non-finite weights, which no run should resume from.
#pragma once
#include <string>

#include "megatron_cpp/step/training_state.h"

namespace mcpp {

/// Returns the first weight with a NaN or infinity, such as "rank 1: decoder.final_layernorm.weight", or "" if all are
/// finite. Identical on all ranks. Reads each weight once. Collective.
std::string find_nonfinite_weight(const TrainingState& state, Communicator& world, Device& device);

}  // namespace mcpp
