#include "checkpoint/format/input_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "base/checksum.h"
#include "base/system_error.h"

namespace mcpp {

// O_NONBLOCK: opening a pipe that somebody put there must not wait for its writer.
InputFile::InputFile(const Path& path)
    : path_(path), descriptor_(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {
  MCPP_CHECK_SYSTEM(descriptor_ >= 0, "cannot open ", path.string());
  struct stat info {};
  const bool is_file = ::fstat(descriptor_, &info) == 0 && S_ISREG(info.st_mode);
  if (!is_file) ::close(descriptor_);
  check_input(is_file, path.string(), " is not a regular file");
}

InputFile::~InputFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

InputFile::InputFile(InputFile&& other) noexcept
    : path_(std::move(other.path_)), descriptor_(std::exchange(other.descriptor_, -1)) {}

i64 InputFile::read_some(i64 offset, std::span<std::byte> to) const {
  ssize_t done = 0;
  do done = ::pread(descriptor_, to.data(), to.size(), offset);
  while (done < 0 && errno == EINTR);
  MCPP_CHECK_SYSTEM(done >= 0, "cannot read ", path_.string());
  return done;
}

void InputFile::read(i64 offset, std::span<std::byte> to) const {
  while (!to.empty()) {
    const i64 done = read_some(offset, to);
    check_input(done > 0, path_.string(), " ends before byte ", offset + static_cast<i64>(to.size()));
    to = to.subspan(static_cast<std::size_t>(done));
    offset += done;
  }
}

void InputFile::prefetch(i64 offset, i64 bytes) const {
  ::posix_fadvise(descriptor_, offset, bytes, POSIX_FADV_WILLNEED);
}

i64 InputFile::size() const {
  struct stat info {};
  MCPP_CHECK_SYSTEM(::fstat(descriptor_, &info) == 0, "cannot stat ", path_.string());
  return info.st_size;
}

std::string InputFile::checksum(const BytesListener& read) const {
  std::vector<std::byte> piece(std::size_t{1} << 19);  // stays in the processor's cache for the sum
  ReadAhead ahead;
  ahead.expect(*this, 0, size());
  Checksum sum;
  for (i64 offset = 0;;) {
    ahead.before_reading(static_cast<i64>(piece.size()));
    const i64 done = read_some(offset, piece);
    if (done == 0) return sum.hex();
    sum.update(std::span(piece).first(static_cast<std::size_t>(done)));
    offset += done;
    if (read) read(done);
  }
}

void ReadAhead::before_reading(i64 bytes) {
  // In steps, because of a larger request some systems take only the beginning.
  constexpr i64 kAhead = i64{32} << 20, kStep = i64{1} << 20;
  while (!expected_.empty() && ahead_ < kAhead) {
    Extent& next = expected_.front();
    const i64 count = std::min(next.bytes, kStep);
    next.file->prefetch(next.offset, count);
    next.offset += count, next.bytes -= count, ahead_ += count;
    if (next.bytes == 0) expected_.pop_front();
  }
  ahead_ -= bytes;
}

}  // namespace mcpp
