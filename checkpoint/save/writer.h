// Saving: every rank writes one file. The checkpoint becomes visible atomically, complete and durable, or not at all.
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

/// Points of a save at which tests kill the process. At each point, the folder has an intact checkpoint.
enum class SavePoint : u8 {
  BeforeFiles,     ///< every rank: the temporary directory exists; an asynchronous save has not copied host memory yet
  AfterFiles,      ///< every rank: its file is written and flushed
  BeforeManifest,  ///< rank 0: all files are flushed
  BeforeRename,    ///< rank 0: the manifest is flushed
  BeforeLatest,    ///< rank 0: the checkpoint is renamed, but `latest` still names the previous checkpoint
  BeforePrune,     ///< rank 0: older checkpoints have not been removed
  BeforeReplicas,  ///< every rank: its part of a local checkpoint is complete, but other nodes have no copy
  BeforeReplicaRename,  ///< every rank that keeps a copy: the copy is verified and flushed, but not visible
};

/// Callback for reached points; may be empty. Tests use it to end the process there.
using SaveObserver = std::function<void(SavePoint)>;

inline void reach(SavePoint point, const SaveObserver& observer) {
  if (observer) observer(point);
}

/// Destination of a checkpoint.
struct SaveTarget {
  Path folder;
  Retention retention = {};
  /// Part: every rank saves, to a separate folder, the data that it restores without other ranks.
  Coverage coverage = Coverage::Full;
  SaveObserver observer = {};        ///< called in the thread that reaches the point
  const FolderLock* lock = nullptr;  ///< lock of the folder, on the rank that holds it; must outlive the save
};

/// Save in separate steps. Each rank holds its own shards; with Coverage::Full, every tensor must be held exactly once
/// over all ranks. The state of rank 0 is saved or, with Coverage::Part, each rank's own. The caller should hold the
/// FolderLock of the folder.
///
/// The files of all ranks and then the manifest are written to a temporary directory and flushed. A rename publishes
/// the directory as a checkpoint, replacing one of the same iteration. Then `latest` is set to it. Finally the replaced
/// checkpoint and those that the retention does not keep are removed. Leftovers of dead processes are removed first.
///
/// If the folder is s3://<bucket>/<key>, each rank writes its file to a local disk (run_folder.h) and uploads it under
/// a name that no other save uses. The upload of the manifest publishes the checkpoint. Then `latest` is set, and the
/// objects of the replaced checkpoint and of those that the retention does not keep are removed, their manifests first.
///
/// The constructor, gather() and finish() are collective over `world`. write() and commit() do the work without
/// communication and may run in any thread.
class CheckpointSave {
 public:
  /// Creates the temporary directory, which the destructor removes unless it was published.
  CheckpointSave(SaveTarget target, RunState state, Communicator& world, StoredRef<Log> log,
                 StoredRef<FileSystem> files);
  CheckpointSave(const CheckpointSave&) = delete;
  CheckpointSave& operator=(const CheckpointSave&) = delete;

  /// Returns the path of the checkpoint, <folder>/iter_<state.iteration>/.
  Path path() const;
  /// Calls prepare() and writes this rank's file. An error is stored and thrown by gather().
  void write(ShardSource& source, const std::function<void()>& prepare = {}) noexcept;
  /// Gathers the manifests of all ranks after write(). Throws on all ranks if write() failed on any.
  void gather();
  /// Publishes the checkpoint on the leader, after gather(); does nothing on other ranks. An error is stored and thrown
  /// by finish().
  void commit() noexcept;
  /// Returns path(), after commit(). If commit() failed, throws its error on all ranks. The folder is then unchanged,
  /// except that the new checkpoint stays if commit() failed after renaming it to path().
  Path finish();
  /// Calls gather(), commit() and finish().
  Path gather_and_finish();

 private:
  /// Directory that the destructor removes.
  struct TempDirGuard {
    Path path = {};
    ~TempDirGuard() { remove(); }
    void remove();
  };

  bool is_leader() const;
  bool is_remote() const;
  void verify_lock_held() const;
  void make_directory();
  void make_local_directory();
  void upload(const Path& file);
  template <class F>
  void keep_error(F&& f) noexcept;
  void throw_error() const;
  Manifest merge() const;
  void publish(const Manifest& manifest);
  void publish_directory();
  void publish_objects(const Manifest& manifest);
  int rename_without_exchange();

  SaveTarget target_;
  RunState state_;
  Communicator& world_;
  const Log& log_;
  const FileSystem& files_;
  Path staging_;                    // temporary directory, shared by all ranks that write to it unless is_remote()
  std::string save_id_;             // identifies the objects of this save; "" unless is_remote()
  TempDirGuard temp_dir_guard_;     // directory that this rank must remove: staging_ until it is published
  std::string part_;                // manifest of this rank's file
  std::vector<std::string> parts_;  // manifests of all ranks' files
  std::exception_ptr error_;
};

/// Saves a checkpoint: runs all steps of CheckpointSave. Collective over `world`. Returns the path of the checkpoint.
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
  double done_ = 0;  // bytes written so far
};

}  // namespace mcpp
