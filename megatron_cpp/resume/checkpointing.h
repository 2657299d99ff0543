// What a checkpoint of a training says beside its tensors, and what else a run does in the folder of its checkpoints.
#pragma once
#include <memory>
#include <string>

#include "checkpoint/directory/lineage.h"
#include "checkpoint/directory/lock.h"
#include "checkpoint/load/reader.h"
#include "megatron_cpp/config/config.h"
#include "megatron_cpp/resume/run_sources.h"
#include "megatron_cpp/resume/special_tokens.h"
#include "megatron_cpp/setup/initialize.h"
#include "megatron_cpp/step/spike_detector.h"
#include "megatron_cpp/step/training_state.h"

namespace mcpp {

/// Where a training stands, beside its tensors.
struct TrainingProgress {
  i64 iteration = 0;         ///< steps done, skipped ones included
  i64 consumed_samples = 0;  ///< decides what is read next
  i64 trained_samples = 0;   ///< samples of steps that were not skipped
  i64 consumed_tokens = 0;
  i64 skipped_iterations = 0;
  i64 consecutive_skips = 0;  ///< of which the last step was one
  i64 rollbacks = 0;
  SpikeHistory spikes = {};
  Lineage lineage = {};               ///< branches of the run, see CheckpointSaver
  bool is_saved = false;              ///< checkpoint.save has this state
  SpecialTokens special_tokens = {};  ///< statements of the model that the run began with

  /// Returns the number of steps that were not skipped.
  i64 trained_iterations() const { return iteration - skipped_iterations; }

  /// After the weights of an earlier checkpoint took the place of these: the steps since count as skipped. What was
  /// read stays read, so that the samples which led here are not read again, and iterations go on counting.
  void roll_back_to(const TrainingProgress& saved);
};

/// BadInput, on all ranks, when something that the run writes would lie in the folder of one checkpoint.
void check_outputs(const Config& config, Communicator& world);

/// Taken before the first step, so that a folder that cannot be written, or that another job uses, is found then. Held
/// by rank 0 while the run lasts; nothing on other ranks, or when checkpoint.save is empty.
std::unique_ptr<FolderLock> lock_save_folder(const Config& config, Session& session, const Log& log);

/// Throws BadInput, on all ranks, when a folder that the run saves checkpoints in cannot be written. For a dry run,
/// which must not disturb a run that holds the lock, and leaves nothing.
void check_save_folders(const Config& config, Communicator& world);

/// The checksum of the tokenizer of the run's text ("" on other ranks than 0, and when nothing says which it is).
std::string tokenizer_checksum(const Config& config, Session& session);
/// Leaves the tokenizer, which must have that checksum still, beside the checkpoints, so that they can be used by
/// themselves. Done once, at the start: saving does not depend on the original file. But not before the run is accepted
/// as the one of these checkpoints: a tokenizer that is refused must not take the place of theirs.
void keep_tokenizer(const Config& config, Session& session, const std::string& checksum);

/// All that a checkpoint of a training says beside its tensors, but what it read: tokenizer and datasets.
RunState run_state(const Config& config, const TrainingState& state, const TrainingProgress& progress);

/// Returns the special tokens that a checkpoint states; none if the run has another tokenizer than the checkpoint.
SpecialTokens kept_special_tokens(const Config& config, const CheckpointReader& reader, const Log& log);

/// The inverse of run_state(): where the training stood that saved the checkpoint. BadInput when the checkpoint is of
/// another run or of other text, or has weights only.
TrainingProgress saved_progress(const Config& config, const DatasetIdentities& datasets, const CheckpointReader& reader,
                                const Log& log);
/// For a run that takes only the weights. BadInput when the checkpoint is of another model, or of another tokenizer.
void check_weights(const Config& config, const CheckpointReader& reader, const Log& log);
/// Once its numbers are loaded: the optimizer counts its steps from there, and the loss scale is as it was.
void restore_counters(const Config& config, TrainingState& state, const CheckpointReader& reader, const Log& log);

/// Where a run leaves its tokenizer: in the folder of its checkpoints.
Path saved_tokenizer(const Path& checkpoint_folder);
/// The tokenizer of a checkpoint: beside it, or else where its configuration has it, "" when that names none.
Path tokenizer_of(const Path& checkpoint, const Config& config);

}  // namespace mcpp
