// A training as named pieces of global tensors: what its checkpoints hold.
#pragma once
#include <vector>

#include "checkpoint/format/shard.h"
#include "megatron_cpp/step/training_state.h"

namespace mcpp {

/// All of weights and optimizer state that this rank updates. The data are views, so reading into them loads the
/// training.
std::vector<NamedShard> shards_to_load(const TrainingState& state);

/// What this rank writes of them, so that each number is written once: ranks that hold the same share the work.
std::vector<NamedShard> shards_to_save(const TrainingState& state);

}  // namespace mcpp
