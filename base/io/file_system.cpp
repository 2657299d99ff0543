#include "base/io/file_system.h"

#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

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

}  // namespace mcpp
