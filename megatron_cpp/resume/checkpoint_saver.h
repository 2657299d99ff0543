// When a training saves, where, and whether it waits for that.
#pragma once
#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "checkpoint/directory/lock.h"
#include "checkpoint/save/async_save.h"
#include "megatron_cpp/resume/checkpointing.h"

namespace mcpp {

/// Saves weights, optimizer state and progress in checkpoint.save, and between in checkpoint.local_save; beside the
/// training where checkpoint.async_save says so. At most one save is in flight: the next waits for it.
///
/// A disk that is full, or a save that fails otherwise on any rank, ends the run on all with the error of that rank, as
/// soon as all have come to that point of the save: earlier checkpoints stay as they are, and once the cause is gone
/// the same command resumes from them.
///
/// Every member is called by all ranks, after the same iterations.
class CheckpointSaver {
 public:
  /// Hears of each save that is complete: of which iteration, and what the log says of it.
  using SavedListener = std::function<void(i64 iteration, const std::string& text)>;

  /// `progress` is where the training starts, `lock` that of checkpoint.save on the rank that holds it. All but these
  /// and the sources outlive this, and the lock does.
  CheckpointSaver(StoredRef<Config> config, StoredRef<TrainingState> state, const TrainingProgress& progress,
                  RunSources sources, Session& session, StoredRef<Log> log, StoredRef<FileSystem> files,
                  const FolderLock* lock = nullptr);

  void set_listener(SavedListener listener) { listener_ = std::move(listener); }
  /// Whether a save is due after this iteration.
  bool is_due(i64 iteration) const;
  /// Starts the save that is due, and ends it too unless it goes on beside the training. `observer` sees it.
  void save(const TrainingProgress& progress, SaveObserver observer);
  /// Before weights or optimizer state change: waits until the save in flight has its copy of them. Communicates with
  /// nobody.
  void wait_for_copy();
  /// After each step: lets the save in flight go on, or ends it, when all ranks have come to the same point of it.
  void poll();
  bool is_in_flight() const { return in_flight_.save != nullptr; }

  /// Whether checkpoint.save is to have this state, and has it not.
  bool must_save(const TrainingProgress& progress) const;
  /// Saves the state there, and returns when it is on the disk. `is_interim`: only because the run stops here.
  void save_and_wait(const TrainingProgress& progress, SaveObserver observer, bool is_interim);
  /// Waits for the save in flight, if there is one.
  void finish();

 private:
  using Clock = std::chrono::steady_clock;
  struct InFlight {
    std::unique_ptr<AsyncSave> save;
    Clock::time_point start;
    double stall = 0;   ///< seconds that the training waited
    i64 iteration = 0;  ///< that it saves
  };

  void prepare();
  SaveTarget target(bool local, SaveObserver observer) const;
  void wait_for(const TrainingProgress& progress, bool local, SaveObserver observer, bool is_interim = false);
  void start(const TrainingProgress& progress, bool local, SaveObserver observer);
  void advance();
  void tell(i64 iteration, const std::string& text) const;
  RunState describe(const TrainingProgress& progress, bool local, bool is_interim = false);

  const Config& config_;
  const TrainingState& state_;
  RunSources sources_;
  Session& session_;
  const Log& log_;
  const FileSystem& files_;
  const FolderLock* lock_;
  std::unique_ptr<FolderLock> local_lock_;
  CpuDevice host_;  // for numbers of the ranks, so that a GPU is not waited for
  HostStaging staging_;
  InFlight in_flight_;
  SavedListener listener_;
  Lineage lineage_;      ///< of what is saved
  i64 saved_iteration_;  ///< in checkpoint.save, or on its way there
};

}  // namespace mcpp
