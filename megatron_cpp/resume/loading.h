// Start of a run from a checkpoint: selects the checkpoints to try and their order, and loads the first intact one.
#pragma once
#include <functional>
#include <optional>
#include <vector>

#include "checkpoint/load/reader.h"
#include "megatron_cpp/monitor/training_logger.h"
#include "megatron_cpp/resume/checkpointing.h"
#include "megatron_cpp/resume/weight_source.h"

namespace mcpp {

// Redistribution of the error feedback of PowerSGD (parallel/dp/power_sgd.h) when a checkpoint is loaded on a different
// number of ranks.

/// Removes from `shards`, as returned by shards_to_load(), the PowerSGD states that the checkpoint lacks because it was
/// saved by different ranks or without PowerSGD, and resets them to their initial values. Returns the removed shards.
std::vector<NamedShard> extract_unsaved(std::vector<NamedShard>& shards, const CheckpointReader& reader);

/// Loads the error feedback tensors among `unsaved` from a checkpoint of a different number of ranks. Each of n ranks
/// adds up the tensors of every n-th saved rank, which preserves the sum over all ranks. Collective; returns damage as
/// CheckpointReader::load() does.
std::optional<Damage> load_redistributed_errors(std::vector<NamedShard>& unsaved, CheckpointReader& reader,
                                                const LoadingRanks& ranks);

/// Resumes a run. Tries in this order:
/// - the newest intact checkpoint of checkpoint.save, or a newer one of checkpoint.local_save that is intact on all
///   ranks;
/// - if there is none, checkpoint.load; with checkpoint.finetune only its weights, which must be finite and of the same
///   architecture.
///
/// If checkpoint.load names a single checkpoint and checkpoint.finetune is off, that checkpoint is always used. Data is
/// verified while it is read: if a checkpoint is damaged, a warning is logged and the previous checkpoint is tried.
///
/// Returns std::nullopt if there is no checkpoint, unless checkpoint.exit_on_missing_checkpoint makes that an error.
/// Throws BadInput if the checkpoint belongs to a different run or to text other than `datasets`, and if all existing
/// checkpoints are damaged.
std::optional<TrainingProgress> load_training(const RunContext& run, const DatasetIdentities& datasets,
                                              TrainingState& state);

/// Returns the iteration of the newest checkpoint in checkpoint.save and checkpoint.local_save, whether it is intact or
/// not; 0 if there is none. Collective.
i64 newest_own_iteration(const CheckpointConfig& config, Communicator& world, const Log& log);

/// Compares the run with the checkpoint that load_training() would load, as far as possible without reading tensors.
/// Returns its progress, or std::nullopt if there is none. Throws the same errors as load_training(). Collective over
/// `world`. Writes nothing.
std::optional<TrainingProgress> check_start_checkpoint(const Config& config, const DatasetIdentities& datasets,
                                                       Communicator& world, const Log& log);

/// Rolls a running training back to the newest intact checkpoint of checkpoint.save and checkpoint.local_save that an
/// uninterrupted run would also have. Returns its progress. Throws TrainingFailed if there is none.
TrainingProgress reload_training(const RunContext& run, const DatasetIdentities& datasets, TrainingState& state);

/// Reads the required parts of a checkpoint. Returns damage, identically on all ranks, if a different checkpoint must
/// be tried.
using ReadCheckpointFn = std::function<std::optional<Damage>(CheckpointReader&)>;

/// Returns the checkpoint at this path or, for a folder of checkpoints, the newest checkpoint that `use` finds intact.
/// Throws BadInput if there is none. Collective over `world`.
Path use_checkpoint(const Path& folder_or_checkpoint, Communicator& world, const Log& log, const ReadCheckpointFn& use);

/// Returns the checkpoint that use_checkpoint() would use, after verifying every byte. Runs in one process.
Path find_checkpoint(const Path& folder_or_checkpoint, const Log& log);

/// Loads the weights only, converted to the type of the model. Throws BadInput if the checkpoint has weights that the
/// model lacks, weights that are NaN or infinite, or no weights of this source.
std::optional<Damage> load_weights(CheckpointReader& reader, GPTModel& model, const LoadingRanks& ranks,
                                   WeightSource source);

}  // namespace mcpp
