// Saving of checkpoints during training. Decides when and where to save, and whether training waits for the save.
#pragma once
#include <functional>
#include <memory>
#include <string>

#include "checkpoint/directory/lock.h"
#include "checkpoint/save/async_save.h"
#include "megatron_cpp/monitor/training_logger.h"
#include "megatron_cpp/resume/checkpointing.h"
#include "megatron_cpp/resume/local_replicas.h"

namespace mcpp {

/// Saves weights, optimizer state and progress to checkpoint.save and, in between, to checkpoint.local_save. With
/// checkpoint.async_save, saves overlap with training. At most one save is in flight: the next save waits for it. With
/// checkpoint.local_replicas, other nodes then copy the local checkpoint; this may overlap with the next save, but ends
/// before that save removes an older checkpoint.
///
/// If a save fails on any rank, for example because a disk is full, the run ends on all ranks with that rank's error
/// once all have reached the same point of the save. Earlier checkpoints are unaffected, and once the cause is removed
/// the same command resumes from them.
///
/// All ranks must call all member functions after the same iterations.
class CheckpointSaver {
 public:
  /// `progress` is the state at the start of the run. `lock` is the lock of checkpoint.save, on the rank that holds it.
  CheckpointSaver(const RunContext& run, StoredRef<TrainingState> state, const TrainingProgress& progress,
                  DataProvenance sources, const FolderLock* lock = nullptr);

  /// Sets a function that is called, on all ranks, with each checkpoint of checkpoint.save when it is complete.
  void set_listener(std::function<void(const Path& checkpoint)> listener) { listener_ = std::move(listener); }
  /// Sets a function that returns the checkpoint that is being read, which saves do not remove. Needed on rank 0 only.
  void set_reader(std::function<Path()> in_use) { in_use_ = std::move(in_use); }

  /// Returns true if a save is due after this iteration.
  bool is_due(i64 iteration) const;
  /// Starts the save that is due, and completes it unless it is asynchronous. `observer` is notified of its stages.
  void save(const TrainingProgress& progress, SaveObserver observer);
  /// Waits until the save in flight has copied the weights and optimizer state. Call it before changing them. Not
  /// collective.
  void wait_for_copy();
  /// Advances the save in flight, or completes it, once all ranks have reached the same point of it. Call it after each
  /// step.
  void poll();
  bool is_in_flight() const { return in_flight_.save != nullptr; }

  /// Returns true if checkpoint.save should have this state but does not.
  bool must_save(const TrainingProgress& progress) const;
  /// Saves the state to checkpoint.save and blocks until it is durable. `is_interim` marks a checkpoint that is saved
  /// only because the run stops here. `hint` is appended to the log line.
  void save_and_wait(const TrainingProgress& progress, SaveObserver observer, bool is_interim, const char* hint = "");
  /// Waits for the save and the copies in flight, if there are any.
  void finish();
  /// Removes the local checkpoints and copies that this rank keeps in memory. Call it when checkpoint.save has the last
  /// state of the run.
  void remove_parts_in_memory();

 private:
  struct InFlight {
    std::unique_ptr<AsyncSave> save;
    double start = 0;   ///< steady_seconds() at the start of the save
    double stall = 0;   ///< seconds that training waited
    i64 iteration = 0;  ///< iteration being saved
    bool is_local = false;
    SaveObserver observer = {};  ///< passed on to the replication
  };

  void prepare();
  SaveTarget target(bool is_local, SaveObserver observer) const;
  void save_synchronously(const TrainingProgress& progress, bool is_local, SaveObserver observer,
                          bool is_interim = false, const char* hint = "");
  void start(const TrainingProgress& progress, bool is_local, SaveObserver observer);
  void advance();
  void finish_save();
  void finish_shared_save(const Path& path) const;
  void log_saved(i64 iteration, const std::string& text) const;
  RunState describe(const TrainingProgress& progress, bool is_local, bool is_interim = false);

  RunContext run_;
  const TrainingState& state_;
  DataProvenance sources_;
  const FileSystem files_;
  const FolderLock* lock_;
  std::unique_ptr<FolderLock> local_lock_;
  std::unique_ptr<LocalReplicas> replicas_;  // null without checkpoint.local_replicas
  CpuDevice host_;  // device of the values that ranks exchange, in host memory so that no GPU is waited for
  HostStaging staging_;
  InFlight in_flight_;
  std::function<void(const Path&)> listener_;
  std::function<Path()> in_use_;
  Lineage lineage_;      ///< lineage of the checkpoints that this run saves
  i64 saved_iteration_;  ///< last iteration saved, or being saved, to checkpoint.save
};

}  // namespace mcpp
