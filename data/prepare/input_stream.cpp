#include "data/prepare/input_stream.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/links.h"
#include "base/system_error.h"

namespace mcpp {
namespace {

constexpr std::size_t kPieceBytes = std::size_t{1} << 18;
constexpr int kPatienceMilliseconds = 10'000;

/// Waits for a writer, up to a timeout, since opening a pipe does not block here.
void wait_for_writer(int descriptor, const Path& path) {
  pollfd wait{.fd = descriptor, .events = POLLIN, .revents = 0};
  int ready = 0;
  do {
    ready = ::poll(&wait, 1, kPatienceMilliseconds);
  } while (ready < 0 && errno == EINTR);
  check_input(ready != 0, path.string(), " is a pipe, and nobody wrote to it within ", kPatienceMilliseconds / 1000,
              " seconds");
  ::fcntl(descriptor, F_SETFL, 0);  // blocking from here on
}

}  // namespace

InputStream::InputStream(const Path& path) : path_(path) {
  check_leads_somewhere(path);
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
    while (packed_.size() < Unpacker::kMagicBytes && read_packed() > 0) {
    }
    unpacker_ = make_unpacker(packed_);
  } catch (...) {
    ::close(descriptor);
    throw;
  }
}

InputStream::~InputStream() {
  ::close(descriptor_);
}

void InputStream::damaged(const std::string& why) const {
  fail(ExitCode::BadInput, path_.string(), ": ", why, " at byte ", bytes_consumed(),
       "; nothing of it is used, since text may be missing: pack it again, or cut the file there");
}

/// Appends to the unused input; returns the number of bytes read.
std::size_t InputStream::read_packed() {
  if (at_end_) return 0;
  std::copy(packed_.begin(), packed_.end(), buffer_.begin());
  const std::size_t kept = packed_.size();
  ssize_t got = 0;
  do {
    got = ::read(descriptor_, buffer_.data() + kept, buffer_.size() - kept);
  } while (got < 0 && errno == EINTR);
  MCPP_CHECK_SYSTEM(got >= 0, "cannot read ", path_.string());
  at_end_ = got == 0;
  packed_ = std::span(buffer_).first(kept + static_cast<std::size_t>(got));
  bytes_read_ += static_cast<u64>(got);
  return static_cast<std::size_t>(got);
}

std::size_t InputStream::read(std::span<char> out) {
  if (unpacker_) return unpack(out);
  if (packed_.empty()) read_packed();
  const std::size_t size = std::min(out.size(), packed_.size());
  std::copy_n(packed_.begin(), size, out.begin());
  packed_ = packed_.subspan(size);
  return size;
}

void InputStream::skip_to(u64 offset) {
  MCPP_CHECK(is_regular_file_ && !unpacker_, "skip_to() in a pipe or a packed file");
  MCPP_CHECK_SYSTEM(::lseek(descriptor_, static_cast<off_t>(offset), SEEK_SET) >= 0, "cannot read ", path_.string());
  packed_ = {};
  bytes_read_ = offset;
  at_end_ = false;
}

std::size_t InputStream::unpack(std::span<char> out) {
  while (true) {
    if (packed_.empty() && !may_hold_output_ && read_packed() == 0) {
      if (is_inside_member_) damaged(str("the ", unpacker_->format(), " data ends early"));
      return 0;
    }
    if (!is_inside_member_) {
      begin_next_member();
      continue;
    }
    const Unpacker::Step step = unpacker_->unpack(packed_, out);
    packed_ = packed_.subspan(step.taken);
    if (!step.damage.empty()) damaged(step.damage);
    is_inside_member_ = !step.ends_member;
    may_hold_output_ = is_inside_member_ && step.given == out.size();
    if (step.given > 0) return step.given;
  }
}

/// Starts the next member, or skips zero padding up to the end of the file if the format allows it.
void InputStream::begin_next_member() {
  const auto something_else = [&] {
    damaged(str("a ", unpacker_->member(), " has ended and something that is none follows"));
  };
  if (packed_.front() == 0 && unpacker_->may_be_padded()) {
    while (packed_.size() > 0 || read_packed() > 0) {
      if (std::ranges::any_of(packed_, [](unsigned char byte) { return byte != 0; })) something_else();
      packed_ = {};
    }
    return;
  }
  while (packed_.size() < Unpacker::kMagicBytes && read_packed() > 0) {
  }
  if (!unpacker_->begins_member(packed_)) something_else();
  unpacker_->begin_member();
  is_inside_member_ = true;
}

}  // namespace mcpp
