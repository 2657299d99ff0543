// The local tier: checkpoints on a disk of each node, between those that all ranks share. Every rank saves all it will
// want back in a folder of its own, so that it restores without the others; that works on the same layout only.
#pragma once
#include <optional>
#include <string>

#include "checkpoint/writer.h"
#include "megatron_cpp/config.h"
#include "megatron_cpp/initialize.h"
#include "megatron_cpp/training_state.h"

namespace mcpp {

/// This rank's folder in checkpoint.local_save.
SaveTarget local_target(const CheckpointConfig& config, const Communicator& world);

/// Marks `run` as one of the ranks' parts of one save of one run, so that parts that do not belong together are never
/// loaded together. Called by all ranks.
void mark_local(RunState& run, const CheckpointConfig& config, Communicator& world);

/// This rank's part of the newest checkpoint in the local tier that is sound on all ranks, of this run and of this
/// layout; nothing, on all ranks, when there is none or when checkpoint.save was set back to an older one since. Parts
/// that are damaged give a warning. Called by all ranks.
std::optional<Path> newest_local(const CheckpointConfig& config, const TrainingState& state, Communicator& world,
                                 const Log& log);

}  // namespace mcpp
