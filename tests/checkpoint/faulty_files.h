// File system that fails, tears renames or delays writes as a test requests.
#pragma once
#include <fcntl.h>
#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <thread>

#include "base/io/file_system.h"

namespace mcpp::test {

class FaultyFiles final : public FileSystem {
 public:
  /// Options; set them before the first use.
  i64 full_at = -1;               ///< bytes after which the disk is full; -1 = never
  std::size_t chunk = 0;          ///< maximum bytes per write, with every other write interrupted; 0 = unlimited
  bool cannot_be_direct = false;  ///< direct writes fail with EINVAL
  bool flush_fails = false;       ///< fsync fails with EIO
  bool rename_fails = false;      ///< renames fail with EIO and have no effect
  bool rename_tears = false;      ///< renames fail with EIO but take effect
  bool cannot_exchange = false;
  i64 last_rename = -1;         ///< number of renames that succeed before they fail; -1 = all
  bool dies_at_rename = false;  ///< the first failing rename ends the process instead

  /// Blocks all writes until unblock_writes().
  void block_writes() { accepts_writes_ = false; }
  void unblock_writes() { accepts_writes_ = true; }

  ssize_t pwrite(int file, std::span<const std::byte> bytes, i64 offset) const override {
    while (!accepts_writes_) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    if (cannot_be_direct && (::fcntl(file, F_GETFL) & O_DIRECT) != 0) return fail_with(EINVAL);
    if (chunk > 0) {
      if (++writes_ % 2 == 0) return fail_with(EINTR);
      bytes = bytes.first(std::min(chunk, bytes.size()));
    }
    if (full_at >= 0) {
      const i64 remaining = full_at - written_;
      if (remaining <= 0) return fail_with(ENOSPC);
      bytes = bytes.first(std::min(static_cast<std::size_t>(remaining), bytes.size()));
    }
    const ssize_t done = FileSystem::pwrite(file, bytes, offset);
    written_ += done;
    return done;
  }
  int fsync(int file) const override {
    return flush_fails ? static_cast<int>(fail_with(EIO)) : FileSystem::fsync(file);
  }
  int rename(const Path& from, const Path& to, unsigned flags) const override {
    if (cannot_exchange && flags != 0) return static_cast<int>(fail_with(EINVAL));
    if (last_rename >= 0 && renames_++ >= last_rename) {
      if (dies_at_rename) ::_exit(0);
      return static_cast<int>(fail_with(EIO));
    }
    if (rename_fails) return static_cast<int>(fail_with(EIO));
    const int result = FileSystem::rename(from, to, flags);
    return rename_tears ? static_cast<int>(fail_with(EIO)) : result;
  }

 private:
  static ssize_t fail_with(int error) {
    errno = error;
    return -1;
  }

  std::atomic<bool> accepts_writes_ = true;
  mutable std::atomic<i64> writes_ = 0, written_ = 0, renames_ = 0;
};

}  // namespace mcpp::test
