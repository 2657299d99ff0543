// Saving: every rank writes one file, and the checkpoint appears at once, complete and durable, or not at all.
#pragma once
#include <exception>
#include <functional>
#include <span>

#include "base/io/file_system.h"
#include "base/log.h"
#include "base/program/progress.h"
#include "base/stored_ref.h"
#include "base/types.h"
#include "checkpoint/directory/lock.h"
#include "checkpoint/directory/retention.h"
#include "checkpoint/format/manifest.h"
#include "checkpoint/format/shard.h"
#include "comm/communicator.h"

namespace mcpp {

/// The points of a save between which a process may die: whatever the last one it reached, a sound checkpoint is left.
enum class SavePoint : u8 {
  BeforeFiles,  ///< every rank: the temporary directory is there; beside the training, nothing in host memory is copied
                ///< yet
  AfterFiles,   ///< every rank: its file is written and flushed
  BeforeManifest,  ///< rank 0: all files are
  BeforeRename,    ///< rank 0: so is the manifest
  BeforeLatest,    ///< rank 0: the checkpoint is there, `latest` names the one before
  BeforePrune,     ///< rank 0: older checkpoints are not removed yet
};

/// Called when a point is reached; may be empty. For tests that end the process there.
using SaveObserver = std::function<void(SavePoint)>;

inline void reach(SavePoint point, const SaveObserver& observer) {
  if (observer) observer(point);
}

/// Where a checkpoint goes.
struct SaveTarget {
  Path folder;
  Retention retention = {};
  /// Part: every rank saves in a folder of its own what it will want back, without the others.
  Coverage coverage = Coverage::Whole;
  SaveObserver observer = {};        ///< called in the thread that reaches the point
  const FolderLock* lock = nullptr;  ///< of the folder, on the rank that holds it; outlives the save
};

/// A save in its steps. Each rank holds its own shards; together, with Coverage::Whole, they must hold every tensor
/// once. The state of rank 0 counts, with Coverage::Part each rank's own. Who saves in a folder should hold its
/// FolderLock.
///
/// Everything goes to a temporary directory first: the ranks' files with checksums, then the manifest, all flushed; a
/// rename makes it a checkpoint, replacing one of the same iteration; then `latest` points at it; then the one that it
/// replaced, and checkpoints that the retention does not keep, are removed. What processes that died left goes first
/// of all.
///
/// The constructor, gather() and finish() are called by all ranks of `world`, and exchange little. write() and
/// commit(), which have the work, do not communicate: any thread may call them, while others do what they like.
class CheckpointSave {
 public:
  /// Makes the temporary directory, which goes with this unless it became a checkpoint. The world, the log and the
  /// files outlive this.
  CheckpointSave(SaveTarget target, RunState state, Communicator& world, StoredRef<Log> log,
                 StoredRef<FileSystem> files);
  CheckpointSave(const CheckpointSave&) = delete;
  CheckpointSave& operator=(const CheckpointSave&) = delete;

  /// The directory <folder>/iter_<state.iteration>/ that becomes the checkpoint.
  Path path() const;
  /// Writes this rank's file, after prepare(). An error of either is kept for gather().
  void write(ShardSource& source, const std::function<void()>& prepare = {}) noexcept;
  /// After write(): what all ranks wrote comes together. When any of them failed, all throw its error.
  void gather();
  /// After gather(): the leader makes the checkpoint; other ranks have nothing to do. An error is kept for finish().
  void commit() noexcept;
  /// After commit(): returns path(). When it failed, all ranks throw its error, and the folder is as before; but a
  /// checkpoint that already has its name stays.
  Path finish();
  /// All of this from gather() on.
  Path gather_and_finish();

 private:
  /// A directory that is removed in the end, whatever happens.
  struct TempDirGuard {
    Path path = {};
    ~TempDirGuard() { remove(); }
    void remove();
  };

  bool is_leader() const;
  void verify_lock_held() const;
  void make_directory();
  template <class F>
  void keep_error(F&& f) noexcept;
  void throw_error() const;
  Manifest merge() const;
  void publish(const Manifest& manifest);
  void publish_directory();
  int rename_without_exchange();

  SaveTarget target_;
  RunState state_;
  Communicator& world_;
  const Log& log_;
  const FileSystem& files_;
  Path staging_;                    // the temporary directory, of all ranks that write in it
  TempDirGuard temp_dir_guard_;     // what this rank is to remove: that, until it is the checkpoint
  std::string part_;                // the manifest of this rank's file
  std::vector<std::string> parts_;  // of the files of the checkpoint
  std::exception_ptr error_;
};

/// All steps at once.
Path save_checkpoint(const Path& folder, const RunState& state, ShardSource& source, Communicator& world,
                     const Log& log, const Retention& retention = {}, const FileSystem& files = FileSystem());

// Progress display for writing shards.

/// Forwards the shards of `source` and shows the progress on the terminal.
class ProgressShardSource final : public ShardSource {
 public:
  ProgressShardSource(ShardSource& source, StoredRef<Log> log, std::string what);
  std::span<const ShardSpec> shards() const override { return source_.shards(); }
  Tensor data(std::size_t index) override;

 private:
  ShardSource& source_;
  Progress progress_;
  double done_ = 0;  // bytes
};

}  // namespace mcpp
