#include "base/io/file_system.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <limits>

#include "base/machine.h"
#include "base/strings.h"
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

Path nearest_existing(const Path& path) {
  Path existing = std::filesystem::absolute(path);
  std::error_code ignored;  // if an entry cannot be inspected, its parent is used
  while (!std::filesystem::exists(existing, ignored) && existing.has_relative_path()) existing = existing.parent_path();
  return existing;
}

std::string file_system_id(const Path& path) {
  struct stat info {};
  MCPP_CHECK_SYSTEM(::stat(path.c_str(), &info) == 0, "cannot stat ", path.string());
  return str(host_name(), ":", info.st_dev);
}

bool is_memory_backed(const Path& path) {
  struct statfs info {};
  MCPP_CHECK_SYSTEM(::statfs(path.c_str(), &info) == 0, "cannot stat ", path.string());
  return info.f_type == TMPFS_MAGIC || info.f_type == RAMFS_MAGIC || info.f_type == HUGETLBFS_MAGIC;
}

i64 max_file_bytes() {
  struct rlimit limit {};
  const bool is_limited = ::getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;
  return is_limited ? static_cast<i64>(limit.rlim_cur) : std::numeric_limits<i64>::max();
}

}  // namespace mcpp
