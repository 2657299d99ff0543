#include "data/preprocess/input_stream.h"

#define ZLIB_CONST  // declares zlib's input pointers const
#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>
#include <zstd_errors.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <new>

#include "base/check.h"
#include "base/file.h"
#include "base/object_store/stored_file.h"
#include "base/system_error.h"

namespace mcpp {
namespace {

using Bytes = std::span<const unsigned char>;

class GzipDecompressor final : public Decompressor {
 public:
  GzipDecompressor() { MCPP_CHECK(::inflateInit2(&inflate_, kGzipOnly) == Z_OK, "zlib"); }
  ~GzipDecompressor() override { ::inflateEnd(&inflate_); }
  GzipDecompressor(const GzipDecompressor&) = delete;
  GzipDecompressor& operator=(const GzipDecompressor&) = delete;

  static bool is_magic(Bytes bytes) { return bytes.size() >= 2 && bytes[0] == 0x1F && bytes[1] == 0x8B; }
  const char* format() const override { return "gzip"; }
  const char* member() const override { return "gzip member"; }
  bool is_member_start(Bytes bytes) const override { return is_magic(bytes); }
  bool allows_padding() const override { return true; }

  Step decompress(Bytes compressed, std::span<char> out) override {
    const uInt space = static_cast<uInt>(std::min<std::size_t>(out.size(), 1 << 30));
    inflate_.next_out = reinterpret_cast<Bytef*>(out.data());
    inflate_.avail_out = space;
    inflate_.next_in = compressed.data();
    inflate_.avail_in = static_cast<uInt>(compressed.size());
    const int code = ::inflate(&inflate_, Z_NO_FLUSH);
    if (code == Z_MEM_ERROR) throw std::bad_alloc();
    Step step{.consumed = compressed.size() - inflate_.avail_in,
              .produced = space - inflate_.avail_out,
              .ends_member = code == Z_STREAM_END};
    if (code != Z_OK && code != Z_STREAM_END && code != Z_BUF_ERROR)
      step.damage = inflate_.msg ? str("the gzip data is damaged (", inflate_.msg, ")") : "the gzip data is damaged";
    return step;
  }
  void begin_member() override { MCPP_CHECK(::inflateReset2(&inflate_, kGzipOnly) == Z_OK, "zlib"); }

 private:
  static constexpr int kGzipOnly = 15 + 16;  // zlib windowBits: largest window, gzip header required

  z_stream inflate_{};
};

class ZstdDecompressor final : public Decompressor {
 public:
  ZstdDecompressor() : stream_(::ZSTD_createDStream(), &::ZSTD_freeDStream) {
    if (!stream_) throw std::bad_alloc();
  }

  /// Returns true for frames with text and for skippable frames, such as the index of a seekable file.
  static bool is_magic(Bytes bytes) {
    constexpr std::array<unsigned char, 4> kFrame{0x28, 0xB5, 0x2F, 0xFD};
    constexpr std::array<unsigned char, 3> kSkippable{0x2A, 0x4D, 0x18};  // preceded by 0x50 to 0x5F
    return bytes.size() >= kFrame.size() &&
           (std::ranges::equal(bytes.first(4), kFrame) ||
            ((bytes[0] & 0xF0) == 0x50 && std::ranges::equal(bytes.subspan(1, 3), kSkippable)));
  }
  const char* format() const override { return "zstd"; }
  const char* member() const override { return "zstd frame"; }
  bool is_member_start(Bytes bytes) const override { return is_magic(bytes); }
  bool allows_padding() const override { return false; }

  Step decompress(Bytes compressed, std::span<char> out) override {
    ZSTD_inBuffer in{compressed.data(), compressed.size(), 0};
    ZSTD_outBuffer unpacked{out.data(), out.size(), 0};
    const std::size_t code = ::ZSTD_decompressStream(stream_.get(), &unpacked, &in);
    Step step{.consumed = in.pos, .produced = unpacked.pos, .ends_member = code == 0};
    if (::ZSTD_isError(code) == 0) return step;
    const ZSTD_ErrorCode error = ::ZSTD_getErrorCode(code);
    if (error == ZSTD_error_memory_allocation) throw std::bad_alloc();
    step.damage = error == ZSTD_error_frameParameter_windowTooLarge
                      ? "the zstd data needs a window of more than 128 MiB, as created by zstd --long,"
                      : str("the zstd data is damaged (", ::ZSTD_getErrorName(code), ")");
    return step;
  }
  void begin_member() override {
    MCPP_CHECK(::ZSTD_isError(::ZSTD_DCtx_reset(stream_.get(), ZSTD_reset_session_only)) == 0, "zstd");
  }

 private:
  std::unique_ptr<ZSTD_DStream, std::size_t (*)(ZSTD_DStream*)> stream_;
};

}  // namespace

std::unique_ptr<Decompressor> make_decompressor(Bytes begin) {
  if (GzipDecompressor::is_magic(begin)) return std::make_unique<GzipDecompressor>();
  if (ZstdDecompressor::is_magic(begin)) return std::make_unique<ZstdDecompressor>();
  return nullptr;
}

namespace {

constexpr std::size_t kChunkBytes = std::size_t{1} << 18;
constexpr int kWriterTimeoutMilliseconds = 10'000;

/// Waits for a writer, up to a timeout, since opening a pipe does not block here.
void wait_for_writer(int descriptor, const Path& path) {
  pollfd wait{.fd = descriptor, .events = POLLIN, .revents = 0};
  int ready = 0;
  do {
    ready = ::poll(&wait, 1, kWriterTimeoutMilliseconds);
  } while (ready < 0 && errno == EINTR);
  check_input(ready != 0, path.string(), " is a pipe without a writer for ", kWriterTimeoutMilliseconds / 1000,
              " seconds");
  ::fcntl(descriptor, F_SETFL, 0);  // blocking from here on
}

}  // namespace

InputStream::InputStream(const Path& path) : path_(path) {
  const Path file = local_copy(path);
  check_path_exists(file);
  const int descriptor = ::open(file.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  MCPP_CHECK_SYSTEM(descriptor >= 0, "cannot open ", path.string());
  descriptor_ = descriptor;
  try {
    struct stat info {};
    check_input(::fstat(descriptor, &info) == 0, "cannot read the attributes of ", path.string());
    check_input(!S_ISDIR(info.st_mode), path.string(), " is a directory; specify text files");
    check_input(S_ISREG(info.st_mode) || S_ISFIFO(info.st_mode), path.string(), " is neither a file nor a pipe");
    is_regular_file_ = S_ISREG(info.st_mode);
    if (!is_regular_file_) wait_for_writer(descriptor, path);
    buffer_.resize(kChunkBytes);
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
       "; the file is not used, since text may be missing: compress it again, or truncate it at that byte");
}

/// Appends to the unused input; returns the number of bytes read.
std::size_t InputStream::read_compressed() {
  if (is_at_end_) return 0;
  std::copy(compressed_.begin(), compressed_.end(), buffer_.begin());
  const std::size_t unread = compressed_.size();
  ssize_t got = 0;
  do {
    got = ::read(descriptor_, buffer_.data() + unread, buffer_.size() - unread);
  } while (got < 0 && errno == EINTR);
  MCPP_CHECK_SYSTEM(got >= 0, "cannot read ", path_.string());
  is_at_end_ = got == 0;
  compressed_ = std::span(buffer_).first(unread + static_cast<std::size_t>(got));
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
  MCPP_CHECK(is_regular_file_ && !decompressor_, "seek() does not support pipes and compressed files");
  MCPP_CHECK_SYSTEM(::lseek(descriptor_, static_cast<off_t>(offset), SEEK_SET) >= 0, "cannot read ", path_.string());
  compressed_ = {};
  bytes_read_ = offset;
  is_at_end_ = false;
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
    fail_damaged(str("a ", decompressor_->member(), " is followed by trailing garbage"));
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
