// Checksummed vector of values in a scratch file, which detects corruption by the disk.
#pragma once
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/io/scratch_file.h"

namespace mcpp {

/// Byte range [offset, offset + bytes) of a file, divided into pieces with one checksum each. Pieces never written read
/// as zeros.
class FileRegion {
 public:
  static constexpr i64 kPiece = i64{512} << 10;

  /// `name` identifies the data in error messages. offset and bytes must be aligned.
  FileRegion(std::shared_ptr<const ScratchFile> file, i64 offset, i64 bytes, std::string name);

  const ScratchFile& file() const { return *file_; }
  i64 offset() const { return offset_; }
  i64 bytes() const { return bytes_; }
  bool is_blank() const;

  /// Records the checksums of `bytes`, the complete contents about to be written to the region.
  void record_checksums(std::span<const std::byte> bytes);
  /// Verifies the contents of the region after a read, and zeroes the pieces that were never written. Throws PeerLost
  /// if a checksum differs, so that the launcher restarts the run from its last checkpoint.
  void verify(std::span<std::byte> bytes) const;

  /// Reads bytes [begin, begin + to.size()) of the region; blocks. Safe to call from any thread while no thread writes.
  /// Throws PeerLost if the disk fails.
  void read(i64 begin, std::span<std::byte> to) const;
  void write(i64 begin, std::span<const std::byte> from);

 private:
  std::size_t pieces() const { return sums_.size(); }
  i64 piece_bytes(std::size_t piece) const;
  void check_piece(std::size_t piece, std::span<const std::byte> bytes) const;
  void read_piece(std::size_t piece, std::span<std::byte> to) const;

  std::shared_ptr<const ScratchFile> file_;
  i64 offset_, bytes_;
  std::string name_;
  std::vector<std::string> sums_;  // one per piece; empty if never written
};

}  // namespace mcpp
