// State that checkpoints store in addition to tensors, and the other files of a run in its checkpoint folder.
#pragma once
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "base/log.h"
#include "checkpoint/directory/lineage.h"
#include "checkpoint/directory/lock.h"
#include "checkpoint/format/manifest.h"
#include "checkpoint/load/reader.h"
#include "comm/communicator.h"
#include "megatron_cpp/config/config.h"
#include "megatron_cpp/resume/special_tokens.h"
#include "megatron_cpp/resume/stage_progress.h"
#include "megatron_cpp/setup/initialize.h"
#include "megatron_cpp/step/step_policy.h"
#include "megatron_cpp/step/training_state.h"

namespace mcpp {

// Identity of the text that a run reads. It must not change on resume and must be identical on all ranks.

/// Maps a key such as "data.data_path" to the joined dataset_identity() of all its datasets.
using DatasetIdentities = std::map<std::string, std::string>;

/// Returns the identities of all datasets of the configuration. Throws BadInput, on all ranks, if any rank cannot read
/// a dataset or reads a different one. Collective over `world`.
DatasetIdentities identify_datasets(const Config& config, Communicator& world);

/// Content identity of a run's inputs, as stored in its checkpoints.
struct DataProvenance {
  std::string tokenizer_checksum = {};
  DatasetIdentities datasets = {};
};

/// Stores `sources` in a checkpoint's state.
void store_sources(const DataProvenance& sources, RunState& run);

/// Returns `saved`, the configuration of a checkpoint, with dataset paths replaced by the paths in `config` if the
/// contents are known to be identical, so that files may be moved.
Config with_moved_datasets(Config saved, const Config& config, const DatasetIdentities& now, const RunState& run);

/// Throws BadInput naming every dataset that differs from the one that `checkpoint` was trained on. If
/// checkpoint.allow_changed_keys names the key of a dataset, warns instead. Checkpoints of earlier versions have no
/// dataset identities and pass.
void check_same_datasets(const Config& config, const DatasetIdentities& now, const RunState& run,
                         const std::string& checkpoint, const Log& log);

/// Progress of a training run.
struct TrainingProgress {
  i64 iteration = 0;         ///< finished steps, including skipped ones
  i64 consumed_samples = 0;  ///< determines the next samples to read
  i64 trained_samples = 0;   ///< samples of steps that were not skipped
  i64 consumed_tokens = 0;
  i64 skipped_iterations = 0;
  i64 consecutive_skips = 0;  ///< number of skipped steps up to and including the last step
  i64 rollbacks = 0;
  SpikeHistory spikes = {};
  StageProgress stage = {};
  Lineage lineage = {};               ///< lineage of the run (see CheckpointSaver)
  bool is_saved = false;              ///< true if checkpoint.save contains this state
  SpecialTokens special_tokens = {};  ///< special tokens defined by the model from which the run started

  /// Returns the number of steps that were not skipped.
  i64 trained_iterations() const { return iteration - skipped_iterations; }

  /// Updates the counters after the weights were replaced by the weights of the earlier checkpoint `saved`: the steps
  /// since then count as skipped. Consumed samples stay consumed, so that the samples that led to the rollback are not
  /// read again, and iteration numbers continue.
  void roll_back_to(const TrainingProgress& saved);
};

/// Throws BadInput, on all ranks, if an output of the run would be written inside the folder of a single checkpoint.
void check_outputs(const Config& config, Communicator& world);

/// Locks checkpoint.save; call it before the first step, so that an unwritable folder or a conflict with another job is
/// detected early. Returns the lock on rank 0, which must keep it during the run, and null on other ranks or if
/// checkpoint.save is empty.
std::unique_ptr<FolderLock> lock_save_folder(const Config& config, Session& session, const Log& log);

/// Throws BadInput, on all ranks, if checkpoints, metrics or TensorBoard events of the run cannot be written. Takes no
/// lock, which would disturb a run that holds it, and leaves no files, so that dry runs can call it, too.
void check_save_folders(const Config& config, Communicator& world);

/// Returns the checksum of the tokenizer of the run's text; "" on ranks other than 0 and if no tokenizer is configured.
std::string tokenizer_checksum(const Config& config, Session& session);
/// Copies the tokenizer next to the checkpoints, so that they can be used without the original file. Throws BadInput if
/// its checksum has changed. Call it once, after verifying that the run may continue from these checkpoints, so that a
/// rejected tokenizer never replaces the tokenizer of the checkpoints.
void save_tokenizer(const Config& config, Session& session, const std::string& checksum);

/// Returns the state that a checkpoint stores in addition to tensors, without its sources (tokenizer and datasets).
RunState run_state(const Config& config, const TrainingState& state, const TrainingProgress& progress);
/// Returns the state of a run whose optimizer has made this number of updates, without a loss scale.
RunState run_state(const Config& config, const TrainingProgress& progress, i64 optimizer_steps);

/// Returns the number of updates of the optimizer; std::nullopt if the checkpoint has only weights.
std::optional<i64> optimizer_steps_of(const RunState& run);

/// Returns the special tokens stored in a checkpoint; none if the run has a different tokenizer than the checkpoint.
SpecialTokens load_special_tokens(const Config& config, const CheckpointReader& reader, const Log& log);

/// Returns the counters of the progress that a checkpoint stores, and its stage. Throws BadInput if it has only
/// weights.
TrainingProgress saved_counters(const CheckpointReader& reader);
/// Inverse of run_state(): returns the progress stored in a checkpoint. Throws BadInput if the checkpoint belongs to a
/// different run, was trained on different text, or contains only weights. A checkpoint of a different stage is not
/// compared: TrainingProgress::stage has its number.
TrainingProgress saved_progress(const Config& config, const DatasetIdentities& datasets, const CheckpointReader& reader,
                                const Log& log);
/// Checks a checkpoint from which only the weights are loaded. Throws BadInput if it has a different model or
/// tokenizer.
void check_weights(const Config& config, const CheckpointReader& reader, const Log& log);
/// Restores the optimizer's step count and the loss scale, after the tensors were loaded.
void restore_counters(const Config& config, TrainingState& state, const CheckpointReader& reader, const Log& log);

/// Returns the path where a run saves its tokenizer, in the folder of its checkpoints.
Path saved_tokenizer(const Path& checkpoint_folder);
/// Returns the folder with a checkpoint and the other files of its run.
Path folder_of_checkpoint(const Path& checkpoint);
/// Returns the tokenizer of a checkpoint: the tokenizer saved next to it, or else the tokenizer named by its
/// configuration; "" if there is neither.
Path tokenizer_of(const Path& checkpoint, const Config& config);

}  // namespace mcpp
