// The local tier: checkpoints on a disk of each node, between those that all ranks share. Every rank saves all it will
// want back in a folder of its own, so that it restores without the others; that works on the same layout only.
#pragma once
#include <string>
#include <vector>

#include "checkpoint/format/damage.h"
#include "checkpoint/save/writer.h"
#include "megatron_cpp/config/config.h"
#include "megatron_cpp/setup/initialize.h"
#include "megatron_cpp/step/training_state.h"

namespace mcpp {

/// This rank's folder in checkpoint.local_save.
SaveTarget local_target(const CheckpointConfig& config, const Communicator& world);

/// Marks `run` as one of the ranks' parts of one save of one run, so that parts that do not belong together are never
/// loaded together. Called by all ranks.
void mark_local(RunState& run, const CheckpointConfig& config, Communicator& world);

/// Throws BadInput, on all ranks, if checkpoint.local_save holds checkpoints of another run: saves of this run would
/// replace and prune them. Collective.
void check_local_owner(const CheckpointConfig& config, Communicator& world);

/// Throws BadInput, on all ranks, if checkpoint.local_save holds checkpoints of another run: saves of this run would
/// replace and prune them. Collective.
void check_local_owner(const CheckpointConfig& config, Communicator& world);

/// This rank's parts of the local tier, newest first: of the iterations of which every rank has something. Called by
/// all ranks; the log says why others are not used.
std::vector<Path> local_parts(const CheckpointConfig& config, Communicator& world, const Log& log);

/// What the ranks' parts of one iteration are. Usable: they belong together, to this run and to this layout, and
/// checkpoint.save was not set back to an older iteration since.
enum class LocalParts : u8 { Usable, OfOthers, Damaged };

/// Without reading their numbers; when they are not usable the log says why. Called by all ranks.
LocalParts examine_local(const Path& part, const CheckpointConfig& config, const TrainingState& state,
                         Communicator& world, const Log& log);

/// What the log says of a part that is passed over.
std::string local_damage_warning(const Path& part, const Damage& damage);

}  // namespace mcpp
