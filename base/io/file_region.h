// A vector of numbers in a scratch file, with checksums: no bit comes back from the disk as another.
#pragma once
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/io/scratch_file.h"

namespace mcpp {

/// Bytes [offset, offset + bytes) of a file, as pieces that each have a checksum. A piece that was never written is
/// zeros.
class FileRegion {
 public:
  static constexpr i64 kPiece = i64{512} << 10;

  /// `name`, for messages: whose numbers these are. offset and bytes are aligned.
  FileRegion(std::shared_ptr<const ScratchFile> file, i64 offset, i64 bytes, std::string name);

  const ScratchFile& file() const { return *file_; }
  i64 offset() const { return offset_; }
  i64 bytes() const { return bytes_; }
  bool is_blank() const;

  /// The region is about to be written with these bytes, all that it has.
  void record_checksums(std::span<const std::byte> bytes);
  /// The region was read into these: those that were never written become zeros. PeerLost, with which a launcher starts
  /// the run again from its last checkpoint, when the others are not what was written.
  void verify(std::span<std::byte> bytes) const;

  /// Bytes [begin, begin + to.size()) of the region; waits. Any thread may read while nobody writes. PeerLost where the
  /// disk fails.
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
  std::vector<std::string> sums_;  // by piece; empty: never written
};

}  // namespace mcpp
