// Local tier: checkpoints on a disk of each node, saved between the checkpoints on the shared file system. Every rank
// saves all the state that it needs to its own folder and restores it without other ranks. This requires that the
// layout is unchanged.
#pragma once
#include <string>
#include <vector>

#include "checkpoint/format/manifest.h"
#include "checkpoint/save/writer.h"
#include "megatron_cpp/config/config.h"
#include "megatron_cpp/setup/initialize.h"
#include "megatron_cpp/step/training_state.h"

namespace mcpp {

/// Returns this rank's folder in checkpoint.local_save.
SaveTarget local_target(const CheckpointConfig& config, const Communicator& world);

/// Labels `run` as part of one save of one run, which prevents parts of different saves from being loaded together.
/// Collective.
void mark_local(RunState& run, const CheckpointConfig& config, Communicator& world);

/// Throws BadInput, on all ranks, if checkpoint.local_save holds checkpoints of a different run: saves of this run
/// would replace or remove them. Collective.
void check_local_owner(const CheckpointConfig& config, Communicator& world);

/// Returns this rank's parts of the local tier for all iterations for which every rank has a part, newest first. Logs
/// why other parts are not used. Collective.
std::vector<Path> local_parts(const CheckpointConfig& config, Communicator& world, const Log& log);

/// Usability of the ranks' parts of one iteration. Usable: the parts belong to the same save, to this run and to this
/// layout, and checkpoint.save was not set back to an older iteration since then.
enum class LocalPartsStatus : u8 { Usable, Foreign, Damaged };

/// Examines parts without reading their tensors. Logs why they are not usable. Collective.
LocalPartsStatus inspect_local_parts(const Path& part, const CheckpointConfig& config, const TrainingState& state,
                                     Communicator& world, const Log& log);

/// Returns the log message for a part that is skipped.
std::string local_damage_warning(const Path& part, const Damage& damage);

}  // namespace mcpp
