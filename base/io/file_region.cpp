#include "base/io/file_region.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "base/integer_math.h"

namespace mcpp {

FileRegion::FileRegion(std::shared_ptr<const ScratchFile> file, i64 offset, i64 bytes, std::string name)
    : file_(std::move(file)),
      offset_(offset),
      bytes_(bytes),
      name_(std::move(name)),
      sums_(static_cast<std::size_t>(ceil_div(bytes, kPiece))) {}

i64 FileRegion::piece_bytes(std::size_t piece) const {
  return std::min(kPiece, bytes_ - static_cast<i64>(piece) * kPiece);
}

bool FileRegion::is_blank() const {
  return std::ranges::all_of(sums_, [](const std::string& sum) { return sum.empty(); });
}

void FileRegion::record_checksums(std::span<const std::byte> bytes) {
  MCPP_CHECK(static_cast<i64>(bytes.size()) == bytes_, name_);
  for (std::size_t p = 0; p < pieces(); ++p)
    sums_[p] = checksum_hex(bytes.subspan(p * kPiece, static_cast<std::size_t>(piece_bytes(p))));
}

void FileRegion::check_piece(std::size_t piece, std::span<const std::byte> bytes) const {
  if (checksum_hex(bytes) == sums_[piece]) return;
  fail(ExitCode::PeerLost, file_->name(), ": ", name_, " differs from its checksum: the disk or the memory of this ",
       "node is unreliable. Exclude the node or choose a different folder, and restart; the run resumes from its "
       "last checkpoint");
}

void FileRegion::verify(std::span<std::byte> bytes) const {
  MCPP_CHECK(static_cast<i64>(bytes.size()) == bytes_, name_);
  for (std::size_t p = 0; p < pieces(); ++p) {
    const auto piece = bytes.subspan(p * kPiece, static_cast<std::size_t>(piece_bytes(p)));
    if (sums_[p].empty())
      std::memset(piece.data(), 0, piece.size());
    else
      check_piece(p, piece);
  }
}

void FileRegion::read_piece(std::size_t piece, std::span<std::byte> to) const {
  if (sums_[piece].empty()) {
    std::memset(to.data(), 0, to.size());
    return;
  }
  const int error = file_->read(offset_ + static_cast<i64>(piece) * kPiece, to);
  if (error != 0) file_->throw_transfer_error("read", error, name_);
  check_piece(piece, to);
}

void FileRegion::read(i64 begin, std::span<std::byte> to) const {
  const AlignedBytes buffer(std::min(kPiece, bytes_));
  const i64 end = begin + static_cast<i64>(to.size());
  MCPP_CHECK(begin >= 0 && end <= bytes_, name_);
  for (i64 at = begin; at < end;) {
    const i64 piece = at / kPiece, first = at - piece * kPiece;
    const auto p = static_cast<std::size_t>(piece);
    const std::span<std::byte> all = buffer.bytes().first(static_cast<std::size_t>(piece_bytes(p)));
    read_piece(p, all);
    const i64 count = std::min(end - at, piece_bytes(p) - first);
    std::memcpy(to.data() + (at - begin), all.data() + first, static_cast<std::size_t>(count));
    at += count;
  }
}

void FileRegion::write(i64 begin, std::span<const std::byte> from) {
  const AlignedBytes buffer(std::min(kPiece, bytes_));
  const i64 end = begin + static_cast<i64>(from.size());
  MCPP_CHECK(begin >= 0 && end <= bytes_, name_);
  for (i64 at = begin; at < end;) {
    const i64 piece = at / kPiece, first = at - piece * kPiece;
    const auto p = static_cast<std::size_t>(piece);
    const std::span<std::byte> all = buffer.bytes().first(static_cast<std::size_t>(piece_bytes(p)));
    const i64 count = std::min(end - at, piece_bytes(p) - first);
    if (count < piece_bytes(p)) read_piece(p, all);
    std::memcpy(all.data() + first, from.data() + (at - begin), static_cast<std::size_t>(count));
    const int error = file_->write(offset_ + piece * kPiece, all);
    if (error != 0) file_->throw_transfer_error("write", error, name_);
    sums_[p] = checksum_hex(all);
    at += count;
  }
}

}  // namespace mcpp
