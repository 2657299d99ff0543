#include "checkpoint/save/output_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "base/file.h"
#include "base/strings.h"
#include "base/system_error.h"
#include "checkpoint/format/block_memory.h"
#include "checkpoint/format/input_file.h"

namespace mcpp {
namespace {

bool is_aligned(i64 offset, const std::byte* data) {
  constexpr i64 kMask = BlockMemory::kAlignment - 1;
  return (offset & kMask) == 0 && (reinterpret_cast<std::uintptr_t>(data) & kMask) == 0;
}

}  // namespace

// Only single pages are read back: read-ahead would load pages that are about to be overwritten.
OutputFile::OutputFile(const Path& path, const FileSystem& files)
    : path_(path),
      files_(files),
      descriptor_(::open(path.c_str(), O_RDWR | O_CLOEXEC)),
      direct_(open_direct(path, O_WRONLY)) {
  const int error = descriptor_ < 0 ? last_system_error() : 0;
  if (error != 0 && direct_ >= 0) ::close(direct_);  // the destructor does not run
  MCPP_CHECK_ERROR(error, "cannot open ", path.string());
  ::posix_fadvise(descriptor_, 0, 0, POSIX_FADV_RANDOM);
}

OutputFile::~OutputFile() {
  ::close(descriptor_);
  if (direct_ >= 0) ::close(direct_);
}

i64 OutputFile::size() const {
  struct stat info {};
  MCPP_CHECK_SYSTEM(::fstat(descriptor_, &info) == 0, "cannot stat ", path_.string());
  return info.st_size;
}

void OutputFile::reserve(i64 bytes) {
  const int error = ::posix_fallocate(descriptor_, 0, bytes);
  MCPP_CHECK_ERROR(error, "cannot reserve ", bytes_text(bytes), " of the ", bytes_text(free_bytes(path_.parent_path())),
                   " that are free for ", path_.string());
}

OutputFile::Piece OutputFile::next_piece(i64 offset, std::span<const std::byte> bytes) const {
  constexpr std::size_t kPiece = std::size_t{1} << 18;  // larger pieces need contiguous pages that are hard to allocate
  const std::size_t aligned = bytes.size() / BlockMemory::kAlignment * BlockMemory::kAlignment;
  if (direct_ >= 0 && aligned > 0 && is_aligned(offset, bytes.data())) return {bytes.first(aligned), true};
  return {bytes.first(std::min(kPiece, bytes.size())), false};
}

void OutputFile::write(i64 offset, std::span<const std::byte> bytes) {
  const i64 begin = offset;
  while (!bytes.empty()) {
    const Piece piece = next_piece(offset, bytes);
    const ssize_t done = files_.pwrite(piece.is_direct ? direct_ : descriptor_, piece.bytes, offset);
    if (done < 0 && errno == EINTR) continue;
    if (done < 0 && errno == EINVAL && piece.is_direct) {  // some file systems can open such a file but not write it
      ::close(std::exchange(direct_, -1));
      continue;
    }
    MCPP_CHECK_ERROR(write_error(done), "cannot write ", path_.string());
    bytes = bytes.subspan(static_cast<std::size_t>(done));
    offset += done;
  }
  // Starts writing back cached pages while the next bytes are prepared. Errors are reported by flush().
  ::sync_file_range(descriptor_, begin, offset - begin, SYNC_FILE_RANGE_WRITE);
}

void OutputFile::read(i64 offset, std::span<std::byte> to) const {
  read_at(descriptor_, path_, offset, to);
}

void OutputFile::flush() {
  MCPP_CHECK_SYSTEM(files_.fsync(descriptor_) == 0, "cannot flush ", path_.string());
}

i64 free_bytes(const Path& path) {
  struct statvfs info {};
  MCPP_CHECK_SYSTEM(::statvfs(path.c_str(), &info) == 0, "cannot stat ", path.string());
  return static_cast<i64>(info.f_bavail) * static_cast<i64>(info.f_frsize);
}

std::string bytes_text(i64 bytes) {
  return str(human_bytes(static_cast<double>(bytes)), " (", bytes, " bytes)");
}

}  // namespace mcpp
