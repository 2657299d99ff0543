// Between a run and its checkpoints: which tensors and numbers are saved, and how a run starts from them.
#pragma once
#include <memory>
#include <optional>
#include <string>

#include "checkpoint/lock.h"
#include "checkpoint/reader.h"
#include "checkpoint/writer.h"
#include "megatron_cpp/config.h"
#include "megatron_cpp/initialize.h"
#include "megatron_cpp/spike_detector.h"
#include "megatron_cpp/training_state.h"

namespace mcpp {

/// Where a training stands, beside its tensors.
struct TrainingProgress {
  i64 iteration = 0;         ///< steps done, skipped ones included
  i64 consumed_samples = 0;  ///< decides what is read next
  i64 trained_samples = 0;   ///< of steps that were not skipped: the learning rate follows them
  i64 consumed_tokens = 0;
  i64 skipped_iterations = 0;
  i64 consecutive_skips = 0;  ///< of which the last step was one
  i64 rollbacks = 0;
  SpikeHistory spikes = {};
  bool is_only_local = false;  ///< loaded from the local tier, and not yet in checkpoint.save

  /// After the weights of an earlier checkpoint took the place of these: the steps since count as skipped. What was
  /// read stays read, so that the samples which led here are not read again, and iterations go on counting.
  void roll_back_to(const TrainingProgress& saved);
};

/// Taken before the first step, so that a folder that cannot be written, or that another job uses, is found then. Held
/// by rank 0 while the run lasts; nothing on other ranks, or when checkpoint.save is empty.
std::unique_ptr<FolderLock> lock_save_folder(const Config& config, Session& session, const Log& log);

/// Before every save: ends the run on all ranks, with BadInput, when a later run of its Slurm job took the folder over.
void check_save_folder(const FolderLock* lock, Session& session);

/// Leaves the tokenizer beside the checkpoints, so that they can be used by themselves, and returns its checksum ("" on
/// other ranks than 0 and without a tokenizer). Done once, at the start: saving does not depend on the original file.
std::string keep_tokenizer(const Config& config, Session& session);

/// All that a checkpoint of a training says beside its tensors, but the tokenizer's checksum.
RunState run_state(const Config& config, const TrainingState& state, const TrainingProgress& progress);

/// Continues from the newest good checkpoint of checkpoint.save, or from a newer one of checkpoint.local_save that is
/// sound on all ranks, or, while there is none, of checkpoint.load, of which
/// checkpoint.finetune takes only the weights. When load is one checkpoint and not to finetune, that is taken always.
/// Nothing when there is none, unless that is an error by checkpoint.exit_on_missing_checkpoint. BadInput when the
/// checkpoint is of another run.
std::optional<TrainingProgress> load_training(const Config& config, TrainingState& state, Session& session,
                                              const Log& log);

/// Whether checkpoint.save has any checkpoint, sound or not; the same answer on every rank.
bool has_checkpoint(const Config& config, Session& session);
/// Puts a running training back to the newest good checkpoint of checkpoint.save, and returns where that stood. Ends
/// the run with TrainingFailed when there is none.
TrainingProgress reload_training(const Config& config, TrainingState& state, Session& session, const Log& log);

/// A checkpoint named by its own directory, or the newest good one of a folder; its checksums were compared. BadInput
/// when there is none. Called by all ranks of `world`.
Path find_checkpoint(const Path& folder_or_checkpoint, Communicator& world, const Log& log);

/// Where a run leaves its tokenizer: in the folder of its checkpoints.
Path saved_tokenizer(const Path& checkpoint_folder);

/// Fills the weights alone, converting their type when the model's differs.
void load_weights(CheckpointReader& reader, GPTModel& model);
/// The same for a training, whose optimizer then starts from them.
void load_weights(CheckpointReader& reader, TrainingState& state);

}  // namespace mcpp
