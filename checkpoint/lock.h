// One job per checkpoint folder.
#pragma once

#include "base/file.h"
#include "base/log.h"

namespace mcpp {

/// An exclusive lock on <folder>/.lock for as long as this lives. It goes with the process, however that ends, so a
/// dead job's lock needs no cleaning up.
class FolderLock {
 public:
  /// Creates the folder when needed, takes the lock, and writes and removes a probe file, so that a folder that cannot
  /// be written is found before training starts. Throws BadInput naming the owner (host and process) when another
  /// job holds the lock. A file system without locks gives a warning.
  FolderLock(const Path& folder, const Log& log);
  ~FolderLock();
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

 private:
  int descriptor_ = -1;
};

}  // namespace mcpp
