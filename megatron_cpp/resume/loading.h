// How a run starts from a checkpoint: which are tried, in which order, and what is taken from the first that is sound.
#pragma once
#include <functional>
#include <optional>

#include "checkpoint/load/reader.h"
#include "megatron_cpp/resume/checkpointing.h"

namespace mcpp {

/// Continues from the newest sound checkpoint of checkpoint.save, or from a newer one of checkpoint.local_save that is
/// sound on all ranks, or, while there is none at all, of checkpoint.load, of which checkpoint.finetune takes only the
/// weights, of the same architecture and all finite. When load is one checkpoint and not to finetune, that is taken
/// always. Numbers are verified while they are read; a damaged checkpoint gives a warning and the one before is tried.
/// Nothing when there is no checkpoint, unless that is an error by checkpoint.exit_on_missing_checkpoint. BadInput when
/// the checkpoint is of another run or of other text than `datasets`, and when there are some and all are damaged.
std::optional<TrainingProgress> load_training(const Config& config, const DatasetIdentities& datasets,
                                              TrainingState& state, Session& session, const Log& log);

/// Compares the run with the checkpoint that load_training() would start from, as far as that can be done without its
/// numbers, and throws what that would throw. Called by all ranks of `world`; writes nothing.
void check_start_checkpoint(const Config& config, const DatasetIdentities& datasets, Communicator& world,
                            const Log& log);

/// Puts a running training back to the newest sound checkpoint of checkpoint.save and checkpoint.local_save that the
/// run would also have without interruptions, and returns where that stood. Ends the run with TrainingFailed when there
/// is none.
TrainingProgress reload_training(const Config& config, const DatasetIdentities& datasets, TrainingState& state,
                                 Session& session, const Log& log);

/// Takes from a checkpoint what it wants. Damage, the same on all ranks, means that another checkpoint is to be tried.
using CheckpointUse = std::function<std::optional<Damage>(CheckpointReader&)>;

/// The checkpoint of that path or, when it is a folder of some, the newest of it that `use` finds sound. BadInput when
/// there is none. Called by all ranks of `world`.
Path use_checkpoint(const Path& folder_or_checkpoint, Communicator& world, const Log& log, const CheckpointUse& use);

/// The same, every byte being verified before anything is taken.
Path find_checkpoint(const Path& folder_or_checkpoint, const Log& log);

/// Fills the weights alone, converting their type when the model's differs. BadInput when one is left over, and when
/// one holds NaN or infinite numbers.
std::optional<Damage> load_weights(CheckpointReader& reader, GPTModel& model, const LoadingRanks& ranks);

}  // namespace mcpp
