#include "data/prepare/input_stream.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>
#define ZLIB_CONST  // what is read is not written to
#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/links.h"
#include "base/system_error.h"

namespace mcpp {
namespace {

constexpr std::size_t kBufferBytes = std::size_t{1} << 18;
constexpr unsigned char kGzipMagic[] = {0x1F, 0x8B};
constexpr int kGzipOnly = 15 + 16;  // as zlib has it: any window, a gzip header
constexpr int kPatienceMilliseconds = 10'000;

/// A pipe is opened without waiting for somebody who writes to it; here it waits, but not for ever.
void wait_for_writer(int descriptor, const Path& path) {
  pollfd wait{.fd = descriptor, .events = POLLIN, .revents = 0};
  int ready = 0;
  do {
    ready = ::poll(&wait, 1, kPatienceMilliseconds);
  } while (ready < 0 && errno == EINTR);
  check_input(ready != 0, path.string(), " is a pipe, and nobody wrote to it within ", kPatienceMilliseconds / 1000,
              " seconds");
  ::fcntl(descriptor, F_SETFL, 0);  // from here on it waits
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
    buffer_.resize(kBufferBytes);
    while (packed_.size() < sizeof(kGzipMagic) && read_packed() > 0) {
    }
    if (packed_.size() < sizeof(kGzipMagic) || !std::ranges::equal(packed_.first(sizeof(kGzipMagic)), kGzipMagic))
      return;
    inflate_ = std::make_unique<z_stream_s>();
    MCPP_CHECK(::inflateInit2(inflate_.get(), kGzipOnly) == Z_OK, "zlib");
  } catch (...) {
    ::close(descriptor);
    throw;
  }
}

InputStream::~InputStream() {
  if (inflate_) ::inflateEnd(inflate_.get());
  ::close(descriptor_);
}

void InputStream::damaged(const char* why) const {
  fail(ExitCode::BadInput, path_.string(), ": ", why, " at byte ", bytes_consumed(),
       "; nothing of it is used, since text may be missing: pack it again, or cut the file there");
}

/// Appends to what is not used yet; returns how many bytes came.
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
  if (is_gzip()) return unpack(out);
  if (packed_.empty()) read_packed();
  const std::size_t size = std::min(out.size(), packed_.size());
  std::copy_n(packed_.begin(), size, out.begin());
  packed_ = packed_.subspan(size);
  return size;
}

std::size_t InputStream::unpack(std::span<char> out) {
  z_stream& z = *inflate_;
  z.next_out = reinterpret_cast<Bytef*>(out.data());
  z.avail_out = static_cast<uInt>(std::min<std::size_t>(out.size(), 1 << 30));
  const uInt asked = z.avail_out;
  while (z.avail_out == asked) {
    if (packed_.empty() && read_packed() == 0) {
      if (is_inside_member_) damaged("the gzip data ends early");
      return 0;
    }
    if (!is_inside_member_) {
      begin_next_member();
      continue;
    }
    z.next_in = packed_.data();
    z.avail_in = static_cast<uInt>(packed_.size());
    const int code = ::inflate(&z, Z_NO_FLUSH);
    if (code == Z_MEM_ERROR) throw std::bad_alloc();
    packed_ = packed_.last(z.avail_in);
    if (code != Z_OK && code != Z_STREAM_END && code != Z_BUF_ERROR)
      damaged(z.msg ? str("the gzip data is damaged (", z.msg, ")").c_str() : "the gzip data is damaged");
    is_inside_member_ = code != Z_STREAM_END;
  }
  return asked - z.avail_out;
}

/// After a member: zero bytes to the end of the file, as on tapes, or another member.
void InputStream::begin_next_member() {
  if (packed_.front() == 0) {
    while (packed_.size() > 0 || read_packed() > 0) {
      if (std::ranges::any_of(packed_, [](unsigned char byte) { return byte != 0; }))
        damaged("a gzip member has ended and something that is none follows");
      packed_ = {};
    }
    return;
  }
  while (packed_.size() < sizeof(kGzipMagic) && read_packed() > 0) {
  }
  if (packed_.size() < sizeof(kGzipMagic) || !std::ranges::equal(packed_.first(sizeof(kGzipMagic)), kGzipMagic))
    damaged("a gzip member has ended and something that is none follows");
  MCPP_CHECK(::inflateReset2(inflate_.get(), kGzipOnly) == Z_OK, "zlib");
  is_inside_member_ = true;
}

}  // namespace mcpp
