// Unnamed file for data that does not fit into memory. The system reclaims it however the process ends, so no run can
// mistake the leftovers of a dead one for its state.
#pragma once
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "base/file.h"
#include "base/integer_math.h"

namespace mcpp {

class ScratchFile {
 public:
  /// Required alignment of transfers, in the file and in memory, for direct I/O.
  static constexpr i64 kAlignment = 4096;

  /// Reserves `bytes` on the disk of `folder` (created if missing), so that the disk cannot fill up later. Throws
  /// BadInput if the folder is not writable, is memory-backed, or lacks the space; `key` is the setting that named it.
  ScratchFile(const Path& folder, i64 bytes, std::string_view key);
  ~ScratchFile();
  ScratchFile(const ScratchFile&) = delete;
  ScratchFile& operator=(const ScratchFile&) = delete;

  /// Reserves `bytes` more. Returns 0 or an errno.
  [[nodiscard]] int extend(i64 bytes);

  int descriptor() const { return descriptor_; }
  /// Returns true if transfers bypass the page cache, which not all file systems support.
  bool is_direct() const { return is_direct_; }
  i64 bytes() const { return bytes_; }
  /// Returns "the scratch file in <folder>", for messages.
  std::string name() const;

  /// Transfers synchronously; offset, size and address must be aligned. Thread-safe. Returns 0 or an errno.
  [[nodiscard]] int read(i64 offset, std::span<std::byte> to) const;
  [[nodiscard]] int write(i64 offset, std::span<const std::byte> from) const;

  /// Throws PeerLost for a failed read, write or extension (`verb`) with errno `error`; `what` names the lost data. The
  /// launcher then restarts the run from its last checkpoint.
  [[noreturn]] void throw_transfer_error(std::string_view verb, int error, std::string_view what) const;

 private:
  Path folder_;
  i64 bytes_;
  int descriptor_ = -1;
  bool is_direct_ = false;
};

/// Free space of a disk.
struct DiskSpace {
  std::string id;  ///< unique among the disks of all hosts
  i64 bytes = 0;
};
/// Returns the free space of the disk on which ScratchFile would create its file; creates nothing. Throws BadInput if
/// the folder, or the parent in which it would be created, is not writable or is memory-backed.
DiskSpace scratch_disk_space(const Path& folder, std::string_view key);

/// Rounds `bytes` up to a multiple of ScratchFile::kAlignment.
constexpr i64 aligned_bytes(i64 bytes) {
  return round_up(bytes, ScratchFile::kAlignment);
}

/// Memory aligned to ScratchFile::kAlignment.
class AlignedBytes {
 public:
  explicit AlignedBytes(i64 bytes);
  std::span<std::byte> bytes() const { return {data_.get(), size_}; }

 private:
  struct Free {
    void operator()(std::byte* data) const;
  };
  std::size_t size_;
  std::unique_ptr<std::byte, Free> data_;
};

}  // namespace mcpp
