#include "data/preprocess/input_stream.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/file.h"
#include "base/system_error.h"

namespace mcpp {
namespace {

constexpr std::size_t kPieceBytes = std::size_t{1} << 18;
constexpr int kWriterTimeoutMilliseconds = 10'000;

/// Waits for a writer, up to a timeout, since opening a pipe does not block here.
void wait_for_writer(int descriptor, const Path& path) {
  pollfd wait{.fd = descriptor, .events = POLLIN, .revents = 0};
  int ready = 0;
  do {
    ready = ::poll(&wait, 1, kWriterTimeoutMilliseconds);
  } while (ready < 0 && errno == EINTR);
  check_input(ready != 0, path.string(), " is a pipe, and nobody wrote to it within ",
              kWriterTimeoutMilliseconds / 1000, " seconds");
  ::fcntl(descriptor, F_SETFL, 0);  // blocking from here on
}

}  // namespace

InputStream::InputStream(const Path& path) : path_(path) {
  check_path_exists(path);
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  MCPP_CHECK_SYSTEM(descriptor >= 0, "cannot open ", path.string());
  descriptor_ = descriptor;
  try {
    struct stat info {};
    check_input(::fstat(descriptor, &info) == 0, "cannot read the attributes of ", path.string());
    check_input(!S_ISDIR(info.st_mode), path.string(), " is a directory; give text files");
    check_input(S_ISREG(info.st_mode) || S_ISFIFO(info.st_mode), path.string(), " is neither a file nor a pipe");
    is_regular_file_ = S_ISREG(info.st_mode);
    if (!is_regular_file_) wait_for_writer(descriptor, path);
    buffer_.resize(kPieceBytes);
    while (compressed_.size() < Decompressor::kMagicBytes && read_compressed() > 0) {
    }
    decompressor_ = make_decompressor(compressed_);
  } catch (...) {
    ::close(descriptor);
    throw;
  }
}

InputStream::~InputStream() {
  ::close(descriptor_);
}

void InputStream::fail_damaged(const std::string& why) const {
  fail(ExitCode::BadInput, path_.string(), ": ", why, " at byte ", bytes_consumed(),
       "; nothing of it is used, since text may be missing: pack it again, or cut the file there");
}

/// Appends to the unused input; returns the number of bytes read.
std::size_t InputStream::read_compressed() {
  if (at_end_) return 0;
  std::copy(compressed_.begin(), compressed_.end(), buffer_.begin());
  const std::size_t kept = compressed_.size();
  ssize_t got = 0;
  do {
    got = ::read(descriptor_, buffer_.data() + kept, buffer_.size() - kept);
  } while (got < 0 && errno == EINTR);
  MCPP_CHECK_SYSTEM(got >= 0, "cannot read ", path_.string());
  at_end_ = got == 0;
  compressed_ = std::span(buffer_).first(kept + static_cast<std::size_t>(got));
  bytes_read_ += static_cast<u64>(got);
  return static_cast<std::size_t>(got);
}

std::size_t InputStream::read(std::span<char> out) {
  if (decompressor_) return decompress(out);
  if (compressed_.empty()) read_compressed();
  const std::size_t size = std::min(out.size(), compressed_.size());
  std::copy_n(compressed_.begin(), size, out.begin());
  compressed_ = compressed_.subspan(size);
  return size;
}

void InputStream::seek(u64 offset) {
  MCPP_CHECK(is_regular_file_ && !decompressor_, "skip_to() in a pipe or a packed file");
  MCPP_CHECK_SYSTEM(::lseek(descriptor_, static_cast<off_t>(offset), SEEK_SET) >= 0, "cannot read ", path_.string());
  compressed_ = {};
  bytes_read_ = offset;
  at_end_ = false;
}

std::size_t InputStream::decompress(std::span<char> out) {
  while (true) {
    if (compressed_.empty() && !has_pending_output_ && read_compressed() == 0) {
      if (is_inside_member_) fail_damaged(str("the ", decompressor_->format(), " data ends early"));
      return 0;
    }
    if (!is_inside_member_) {
      begin_next_member();
      continue;
    }
    const Decompressor::Step step = decompressor_->decompress(compressed_, out);
    compressed_ = compressed_.subspan(step.consumed);
    if (!step.damage.empty()) fail_damaged(step.damage);
    is_inside_member_ = !step.ends_member;
    has_pending_output_ = is_inside_member_ && step.produced == out.size();
    if (step.produced > 0) return step.produced;
  }
}

/// Starts the next member, or skips zero padding up to the end of the file if the format allows it.
void InputStream::begin_next_member() {
  const auto fail_trailing_data = [&] {
    fail_damaged(str("a ", decompressor_->member(), " has ended and something that is none follows"));
  };
  if (compressed_.front() == 0 && decompressor_->allows_padding()) {
    while (compressed_.size() > 0 || read_compressed() > 0) {
      if (std::ranges::any_of(compressed_, [](unsigned char byte) { return byte != 0; })) fail_trailing_data();
      compressed_ = {};
    }
    return;
  }
  while (compressed_.size() < Decompressor::kMagicBytes && read_compressed() > 0) {
  }
  if (!decompressor_->is_member_start(compressed_)) fail_trailing_data();
  decompressor_->begin_member();
  is_inside_member_ = true;
}

}  // namespace mcpp
