// A file for numbers that do not fit into memory. It has no name: however the process ends the system takes it back,
// and nothing that a dead run left there can be taken for state.
#pragma once
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "base/file.h"
#include "base/rounding.h"

namespace mcpp {

class ScratchFile {
 public:
  /// A transfer begins and ends, in the file and in memory, at multiples of this, so that it can go past the system's
  /// page cache.
  static constexpr i64 kAlignment = 4096;

  /// Reserves `bytes` on the disk of `folder`, which is made where it does not exist, so that the disk cannot turn out
  /// to be full later. BadInput when it cannot be written, lies in memory, or has not the room; `key` is the setting
  /// that named it.
  ScratchFile(const Path& folder, i64 bytes, std::string_view key);
  ~ScratchFile();
  ScratchFile(const ScratchFile&) = delete;
  ScratchFile& operator=(const ScratchFile&) = delete;

  /// Reserves so many more bytes; 0, or the number of errno that says why not.
  [[nodiscard]] int extend(i64 bytes);

  int descriptor() const { return descriptor_; }
  /// Whether transfers go past the page cache; not all file systems can.
  bool is_direct() const { return is_direct_; }
  i64 bytes() const { return bytes_; }
  /// "the scratch file in <folder>", for messages.
  std::string name() const;

  /// Waits for the transfer; offset, size and address are aligned. Any thread may call these. 0, or the number of errno
  /// that says why it failed.
  [[nodiscard]] int read(i64 offset, std::span<std::byte> to) const;
  [[nodiscard]] int write(i64 offset, std::span<const std::byte> from) const;

  /// For a file that could not be read, written or extended (`verb`), for that number of errno: numbers of `what` are
  /// lost. PeerLost, with which a launcher starts the run again from its last checkpoint.
  [[noreturn]] void fail_transfer(std::string_view verb, int error, std::string_view what) const;

 private:
  Path folder_;
  i64 bytes_;
  int descriptor_ = -1;
  bool is_direct_ = false;
};

/// What a disk has left.
struct DiskRoom {
  std::string id;  ///< the same for no other disk of any machine
  i64 bytes = 0;
};
/// Of the disk where ScratchFile would make its file; makes nothing. BadInput as from there where the folder, or the
/// one in which it would be made, cannot be written or lies in memory.
DiskRoom room_for_scratch(const Path& folder, std::string_view key);

/// `bytes` rounded up to a multiple of ScratchFile::kAlignment.
constexpr i64 aligned_bytes(i64 bytes) {
  return round_up(bytes, ScratchFile::kAlignment);
}

/// Memory that begins at a multiple of ScratchFile::kAlignment.
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
