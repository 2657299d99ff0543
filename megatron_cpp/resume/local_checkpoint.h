// Local tier: checkpoints on a disk or in the memory of each node, saved between the checkpoints on the shared file
// system. Every rank saves all the state that it needs to its own folder and restores it without other ranks. This
// requires that the layout is unchanged. With checkpoint.local_replicas, other nodes keep copies (part_replication.h).
#pragma once
#include <string>
#include <vector>

#include "checkpoint/format/manifest.h"
#include "checkpoint/save/writer.h"
#include "megatron_cpp/config/config.h"
#include "megatron_cpp/resume/part_recovery.h"
#include "megatron_cpp/setup/initialize.h"
#include "megatron_cpp/step/training_state.h"

namespace mcpp {

/// Returns this rank's folder in checkpoint.local_save.
SaveTarget local_target(const CheckpointConfig& config, const Communicator& world);

/// Labels `run` as part of one save of one run, which prevents parts of different saves from being loaded together.
/// Collective.
void mark_local(RunState& run, const CheckpointConfig& config, Communicator& world);

/// Returns the local tier as seen by this rank. Collective.
LocalStore local_store(const CheckpointConfig& config, const Session& session);

/// Throws BadInput, on all ranks, if one of the folders holds checkpoints of a different run: saves of this run would
/// replace or remove them. Ranks may pass different folders. Collective.
void check_local_owner(const CheckpointConfig& config, const std::vector<Path>& folders, Communicator& world);

/// Throws BadInput, on all ranks, if two nodes see the same folder: copies would be lost together with the parts.
/// Writes a temporary file per node to the folders. Does nothing for simulated nodes. Collective.
void check_separate_folders(const CheckpointConfig& config, const LocalStore& store, Communicator& world);

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
