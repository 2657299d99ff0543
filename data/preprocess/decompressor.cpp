#include "data/preprocess/decompressor.h"

#define ZLIB_CONST  // what is read is not written to
#include <zlib.h>
#include <zstd.h>
#include <zstd_errors.h>

#include <algorithm>
#include <array>
#include <new>

#include "base/check.h"

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
    const uInt room = static_cast<uInt>(std::min<std::size_t>(out.size(), 1 << 30));
    inflate_.next_out = reinterpret_cast<Bytef*>(out.data());
    inflate_.avail_out = room;
    inflate_.next_in = compressed.data();
    inflate_.avail_in = static_cast<uInt>(compressed.size());
    const int code = ::inflate(&inflate_, Z_NO_FLUSH);
    if (code == Z_MEM_ERROR) throw std::bad_alloc();
    Step step{.consumed = compressed.size() - inflate_.avail_in,
              .produced = room - inflate_.avail_out,
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
                      ? "the zstd data needs a window of more than 128 MiB, as zstd --long makes it,"
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

}  // namespace mcpp
