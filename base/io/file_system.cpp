#include "base/io/file_system.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <limits>

#include "base/system_error.h"

namespace mcpp {

ssize_t FileSystem::pwrite(int file, std::span<const std::byte> bytes, i64 offset) const {
  return ::pwrite(file, bytes.data(), bytes.size(), offset);
}

int FileSystem::fsync(int file) const {
  return ::fsync(file);
}

int FileSystem::rename(const Path& from, const Path& to, unsigned flags) const {
  return ::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), flags);
}

i64 free_bytes(const Path& path) {
  struct statvfs info {};
  MCPP_CHECK_SYSTEM(::statvfs(path.c_str(), &info) == 0, "cannot stat ", path.string());
  return static_cast<i64>(info.f_bavail) * static_cast<i64>(info.f_frsize);
}

i64 max_file_bytes() {
  struct rlimit limit {};
  const bool is_limited = ::getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;
  return is_limited ? static_cast<i64>(limit.rlim_cur) : std::numeric_limits<i64>::max();
}

}  // namespace mcpp
