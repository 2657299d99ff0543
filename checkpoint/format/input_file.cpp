#include "checkpoint/format/input_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <utility>

#include "base/system_error.h"

namespace mcpp {

void read_at(int descriptor, const Path& path, i64 offset, std::span<std::byte> to) {
  while (!to.empty()) {
    const ssize_t done = ::pread(descriptor, to.data(), to.size(), offset);
    if (done < 0 && errno == EINTR) continue;
    MCPP_CHECK_SYSTEM(done >= 0, "cannot read ", path.string());
    check_input(done > 0, path.string(), " ends before byte ", offset + static_cast<i64>(to.size()));
    to = to.subspan(static_cast<std::size_t>(done));
    offset += done;
  }
}

// O_NONBLOCK: opening a pipe must not wait for its writer.
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

void InputFile::prefetch(i64 offset, i64 bytes) const {
  ::posix_fadvise(descriptor_, offset, bytes, POSIX_FADV_WILLNEED);
}

i64 InputFile::size() const {
  struct stat info {};
  MCPP_CHECK_SYSTEM(::fstat(descriptor_, &info) == 0, "cannot stat ", path_.string());
  return info.st_size;
}

}  // namespace mcpp
