// Lock that limits a checkpoint folder to one job.
#pragma once

#include "base/file.h"
#include "base/log.h"
#include "comm/launcher.h"

namespace mcpp {

/// Name of the lock file, which stays in the folder of a run.
inline constexpr std::string_view kLockName = ".lock";

/// Exclusive lock on <folder>/.lock, or on a file in the run_folder() of an s3:// folder, held during the lifetime of
/// the object. The system releases it when the process ends, so the lock of a dead job needs no cleanup. If a host
/// fails, some file servers keep the lock; then only a later run of the same Slurm job takes it over, because Slurm
/// ends a job's processes before it requeues the job.
class FolderLock {
 public:
  /// Creates the folder if necessary, takes the lock, and writes and removes a probe file, so that an unwritable folder
  /// is detected before training starts. Throws BadInput, naming the owner (host, process and Slurm job), if another
  /// job or another process of this run of `job` holds the lock. Logs a warning if the file system does not support
  /// locks.
  FolderLock(const Path& folder, const Log& log, const SlurmJob& job = {});
  ~FolderLock();
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

  /// Throws BadInput if another process has taken over the lock. Call before making data visible: a disconnected
  /// process that was presumed dead then changes nothing. Thread-safe.
  void check_held() const;

 private:
  /// Opens the lock file and makes `owner` its owner unless it already has one. Returns true if `owner` now owns it.
  bool try_lock(const std::string& owner, const Log& log);

  Path path_;
  std::string owner_;  ///< owner written to path_; empty if the file could not be locked or written
  int descriptor_ = -1;
};

}  // namespace mcpp
