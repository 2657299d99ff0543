// Properties of file systems, and the file system calls of checkpoint saves behind an interface, so that tests can
// inject failures, torn writes and delays.
#pragma once
#include <sys/types.h>

#include "base/file.h"

namespace mcpp {

/// Wrappers of the system calls with these names; return -1 and set errno on failure.
class FileSystem {
 public:
  virtual ~FileSystem() = default;
  virtual ssize_t pwrite(int file, std::span<const std::byte> bytes, i64 offset) const;
  virtual int fsync(int file) const;
  /// `flags` are as in renameat2(2).
  virtual int rename(const Path& from, const Path& to, unsigned flags) const;
};

/// Returns the free bytes for this user in the file system of `path`.
i64 free_bytes(const Path& path);
/// Returns the absolute path, or the nearest of its parents that exists.
Path nearest_existing(const Path& path);
/// Returns an id of the file system of `path`, which must exist. Ids differ between hosts.
std::string file_system_id(const Path& path);
/// Returns true if the file system of `path`, which must exist, is in memory, such as the tmpfs /dev/shm.
bool is_memory_backed(const Path& path);
/// Returns the file size limit (ulimit -f). A write beyond the limit would kill the process with a signal.
i64 max_file_bytes();

}  // namespace mcpp
