// One job per checkpoint folder.
#pragma once

#include "base/file.h"
#include "base/log.h"
#include "comm/launcher.h"

namespace mcpp {

/// Name of the file that is locked; it stays in the folder of a run.
inline constexpr std::string_view kLockName = ".lock";

/// An exclusive lock on <folder>/.lock for as long as this lives. It goes with the process, however that ends, so a
/// dead job's lock needs no cleaning up. Where the machine died with the process, some file servers keep the lock: then
/// only a later run of the same Slurm job takes it over, as Slurm ends a job's processes before it queues the job
/// again.
class FolderLock {
 public:
  /// Creates the folder when needed, takes the lock, and writes and removes a probe file, so that a folder that cannot
  /// be written is found before training starts. Throws BadInput naming the owner (host and process, and its Slurm job)
  /// when another job, or another process of this run of `job`, holds the lock. A file system without locks gives a
  /// warning.
  FolderLock(const Path& folder, const Log& log, const SlurmJob& job = {});
  ~FolderLock();
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

  /// To be called before what is written becomes visible: throws BadInput when another process took the lock over. So a
  /// process that was taken for dead, and was only cut off, spoils nothing. For any thread.
  void check_held() const;

 private:
  /// Opens the file and makes `owner` its owner, unless it has one already.
  bool is_taken(const std::string& owner, const Log& log);

  Path path_;
  std::string owner_;  ///< owner written to path_; empty if it could not be locked or written
  int descriptor_ = -1;
};

}  // namespace mcpp
