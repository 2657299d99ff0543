// Unnamed file for data that does not fit into memory. The system reclaims it however the process ends, so a run cannot
// mistake the leftovers of a dead run for its own state.
#pragma once
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "base/integer_math.h"
#include "base/io/transfer_queue.h"

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
  i64 bytes() const { return bytes_; }
  /// Returns "the scratch file in <folder>", for messages.
  std::string name() const;

  /// Returns the transfer of these bytes, for a queue or transfer_now(). Offset, size and address must be aligned.
  FileTransfer transfer(FileTransfer::Kind kind, i64 offset, std::span<std::byte> data) const {
    return {kind, descriptor_, offset, data.data(), static_cast<i64>(data.size())};
  }
  /// Describes a store of `bytes` bytes in this file for the log: "on the disk of /scratch, 1.2 GiB, by io_uring with
  /// direct I/O".
  std::string describe(i64 bytes, const TransferQueue& queue) const;

  /// Throws PeerLost for a failed read, write or extension (`verb`) with errno `error`; `what` describes the lost data.
  /// The launcher then restarts the run from its last checkpoint.
  [[noreturn]] void throw_transfer_error(std::string_view verb, int error, std::string_view what) const;

 private:
  Path folder_;
  i64 bytes_;
  int descriptor_ = -1;
  bool is_direct_ = false;  // transfers bypass the page cache, which not all file systems support
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

/// Memory aligned for direct I/O.
class AlignedBytes {
 public:
  explicit AlignedBytes(i64 bytes, i64 alignment = ScratchFile::kAlignment);
  std::span<std::byte> bytes() const { return {data_.get(), size_}; }

 private:
  struct Free {
    void operator()(std::byte* data) const;
  };
  std::size_t size_;
  std::unique_ptr<std::byte, Free> data_;
};

/// Bytes stored outside of tensors. Reads and writes block.
class StoredBytes {
 public:
  virtual ~StoredBytes() = default;
  virtual void read(i64 begin, std::span<std::byte> to) const = 0;
  virtual void write(i64 begin, std::span<const std::byte> from) = 0;
  /// Returns the current bytes, unaffected by later writes.
  virtual std::shared_ptr<StoredBytes> snapshot() = 0;
};

// Checksummed vector of values in a scratch file, which detects corruption by the disk.

/// Byte range [offset, offset + bytes) of a file, divided into chunks with one checksum each. Chunks never written read
/// as zeros.
class FileRegion final : public StoredBytes, public std::enable_shared_from_this<FileRegion> {
 public:
  static constexpr i64 kChunk = i64{512} << 10;

  /// `name` identifies the data in error messages. offset and bytes must be aligned.
  FileRegion(std::shared_ptr<const ScratchFile> file, i64 offset, i64 bytes, std::string name);

  /// Returns the transfer of all bytes between the region and `data`.
  FileTransfer transfer(FileTransfer::Kind kind, std::byte* data) const {
    return file_->transfer(kind, offset_, {data, static_cast<std::size_t>(bytes_)});
  }
  i64 offset() const { return offset_; }
  i64 bytes() const { return bytes_; }
  bool is_blank() const;

  /// Records the checksums of `bytes`, the complete contents about to be written to the region.
  void record_checksums(std::span<const std::byte> bytes);
  /// Verifies the contents of the region after a read, and zeroes the chunks that were never written. Throws PeerLost
  /// if a checksum differs, so that the launcher restarts the run from its last checkpoint.
  void verify(std::span<std::byte> bytes) const;

  /// Reads bytes [begin, begin + to.size()) of the region; blocks. Safe to call from any thread while no thread writes.
  /// Throws PeerLost if the disk fails.
  void read(i64 begin, std::span<std::byte> to) const override;
  void write(i64 begin, std::span<const std::byte> from) override;
  std::shared_ptr<StoredBytes> snapshot() override { return shared_from_this(); }

 private:
  std::size_t chunks() const { return sums_.size(); }
  i64 offset_of(std::size_t chunk) const { return offset_ + static_cast<i64>(chunk) * kChunk; }
  i64 chunk_bytes(std::size_t chunk) const;
  /// Calls f(chunk index, buffer of the entire chunk, range of its bytes) for each chunk that contains bytes of [begin,
  /// end).
  template <class F>
  void for_each_chunk(i64 begin, i64 end, const F& f) const;
  void check_chunk(std::size_t chunk, std::span<const std::byte> bytes) const;
  void read_chunk(std::size_t chunk, std::span<std::byte> to) const;

  std::shared_ptr<const ScratchFile> file_;
  i64 offset_, bytes_;
  std::string name_;
  std::vector<std::string> sums_;  // one per chunk; empty if never written
};

}  // namespace mcpp
