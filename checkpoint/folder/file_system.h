// What saving asks of the disk, behind an interface, so that tests can make each of it fail, tear or take its time.
#pragma once
#include <sys/types.h>

#include "base/file.h"

namespace mcpp {

/// The system calls of these names: -1 and errno for a failure.
class FileSystem {
 public:
  virtual ~FileSystem() = default;
  virtual ssize_t pwrite(int file, std::span<const std::byte> bytes, i64 offset) const;
  virtual int fsync(int file) const;
  /// flags of renameat2(2).
  virtual int rename(const Path& from, const Path& to, unsigned flags) const;
};

}  // namespace mcpp
