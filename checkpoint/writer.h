// Saving: every rank writes one file, and the checkpoint appears at once, complete and durable, or not at all.
#pragma once
#include <exception>
#include <span>

#include "base/log.h"
#include "checkpoint/file_system.h"
#include "checkpoint/manifest.h"
#include "checkpoint/retention.h"
#include "checkpoint/save_point.h"
#include "comm/communicator.h"

namespace mcpp {

/// Where a checkpoint goes.
struct SaveTarget {
  Path folder;
  Retention retention = {};
  /// Part: every rank saves in a folder of its own what it will want back, without the others.
  Coverage coverage = Coverage::Whole;
  SaveObserver observer = {};  ///< called in the thread that reaches the point
};

/// A save in its three steps, of which the second may run beside the training. Each rank holds its own shards;
/// together, with Coverage::Whole, they must hold every tensor once. The state of rank 0 counts, with Coverage::Part
/// each rank's own. Who saves in a folder should hold its FolderLock.
///
/// Everything goes to a temporary directory first: the ranks' files with checksums, then the manifest, all flushed; a
/// rename makes it a checkpoint, replacing one of the same iteration; then `latest` points at it; then checkpoints
/// that the retention does not keep, and what died processes left, are removed.
class CheckpointSave {
 public:
  /// Makes the temporary directory. Called by all ranks of `world`; like `log` and `files` it outlives this.
  CheckpointSave(SaveTarget target, RunState state, Communicator& world, const Log& log, const FileSystem& files);
  ~CheckpointSave();  ///< removes the temporary directory when it did not become a checkpoint
  CheckpointSave(const CheckpointSave&) = delete;
  CheckpointSave& operator=(const CheckpointSave&) = delete;

  /// The directory <folder>/iter_<state.iteration>/ that finish() completes.
  Path path() const;
  /// Writes this rank's file, in any thread: it does not communicate. Once. Its error is kept for finish().
  void write(ShardSource& source) noexcept;
  /// Makes the checkpoint of what was written, and returns path(). Called by all ranks, when write() has returned.
  /// When any rank failed, all throw its error and the folder is as before.
  Path finish();

 private:
  bool is_leader() const;
  void make_directory();
  Manifest merge(std::span<const std::string> parts) const;
  void commit(const Manifest& manifest);
  void become_checkpoint();

  SaveTarget target_;
  RunState state_;
  Communicator& world_;
  const Log& log_;
  const FileSystem& files_;
  Path staging_;               // the temporary directory, of all ranks that write in it
  bool owns_staging_ = false;  // it is this rank's to remove
  std::string part_;           // the manifest of this rank's file
  std::exception_ptr error_;
};

/// All three steps at once.
Path save_checkpoint(const Path& folder, const RunState& state, ShardSource& source, Communicator& world,
                     const Log& log, const Retention& retention = {}, const FileSystem& files = FileSystem());
Path save_checkpoint(const Path& folder, const RunState& state, std::span<const NamedShard> shards, Communicator& world,
                     const Log& log, const Retention& retention = {}, const FileSystem& files = FileSystem());

}  // namespace mcpp
