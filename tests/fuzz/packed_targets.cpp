// Fuzz targets for compressed files, compared with oracles that decompress the entire file in memory.
#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <array>
#include <optional>

#include "base/check.h"
#include "data/preprocess/input_stream.h"
#include "tests/fuzz/targets.h"

namespace mcpp::fuzz {
namespace {

constexpr int kGzipOnly = 15 + 16;
constexpr std::size_t kMaxText = 1 << 20;  // a few bytes may decompress to a huge run of zeros

std::string gzip(std::string_view text) {
  z_stream z{};
  MCPP_CHECK(::deflateInit2(&z, 1, Z_DEFLATED, kGzipOnly, 8, Z_DEFAULT_STRATEGY) == Z_OK);
  std::string member(::deflateBound(&z, text.size()), '\0');
  z.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  z.avail_in = static_cast<uInt>(text.size());
  z.next_out = reinterpret_cast<Bytef*>(member.data());
  z.avail_out = static_cast<uInt>(member.size());
  MCPP_CHECK(::deflate(&z, Z_FINISH) == Z_STREAM_END);
  member.resize(z.total_out);
  ::deflateEnd(&z);
  return member;
}

std::string zstd(std::string_view text) {
  std::string frame(::ZSTD_compressBound(text.size()), '\0');
  const std::size_t size = ::ZSTD_compress(frame.data(), frame.size(), text.data(), text.size(), 1);
  MCPP_CHECK(::ZSTD_isError(size) == 0);
  frame.resize(size);
  return frame;
}

/// Builds a file from parts; each is a kind, a length and that number of bytes.
std::string file_of(std::string_view input, std::string (*pack)(std::string_view)) {
  std::string file;
  while (input.size() >= 2) {
    const auto kind = static_cast<u8>(input[0]) % 4;
    const std::string_view part = input.substr(2, static_cast<u8>(input[1]));
    input.remove_prefix(2 + part.size());
    std::string member = pack(part);
    if (kind == 1 && !part.empty()) {  // damaged
      char& byte = member[static_cast<u8>(part[0]) % member.size()];
      byte = static_cast<char>(byte ^ 1 << part.size() % 8);
    }
    if (kind == 2) member = part;
    if (kind == 3) member.assign(part.size(), '\0');
    file += member;
  }
  return file;
}

/// Removes the first member of `file` and returns its decompressed text, or nothing if it is damaged.
std::optional<std::string> take_member(std::string_view& file) {
  z_stream z{};
  MCPP_CHECK(::inflateInit2(&z, kGzipOnly) == Z_OK);
  std::string text(kMaxText, '\0');
  z.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(file.data()));
  z.avail_in = static_cast<uInt>(file.size());
  z.next_out = reinterpret_cast<Bytef*>(text.data());
  z.avail_out = static_cast<uInt>(text.size());
  const int code = ::inflate(&z, Z_FINISH);
  text.resize(z.total_out);
  file.remove_prefix(z.total_in);
  ::inflateEnd(&z);
  return code == Z_STREAM_END ? std::optional(text) : std::nullopt;
}

bool begins_as_gzip(std::string_view file) {
  return file.starts_with("\x1F\x8B");
}

bool begins_as_zstd(std::string_view file) {
  return file.starts_with("\x28\xB5\x2F\xFD") ||
         (file.size() >= 4 && (file[0] & 0xF0) == 0x50 && file.substr(1, 3) == "\x2A\x4D\x18");
}

std::optional<std::string> text_of_gzip(std::string_view file) {
  std::string text;
  while (begins_as_gzip(file)) {
    const std::optional<std::string> member = take_member(file);
    if (!member) return std::nullopt;
    text += *member;
  }
  const bool only_zeros = std::ranges::all_of(file, [](char c) { return c == '\0'; });
  return only_zeros ? std::optional(text) : std::nullopt;
}

std::optional<std::string> text_of_zstd(std::string_view file) {
  std::string text(kMaxText, '\0');
  const std::size_t size = ::ZSTD_decompress(text.data(), text.size(), file.data(), file.size());
  if (::ZSTD_isError(size) != 0) return std::nullopt;
  text.resize(size);
  return text;
}

struct Reading {
  std::string text;
  bool is_rejected = false, is_too_long = false;  ///< `is_too_long`: too long for the oracles
};

Reading read(const std::string& file) {
  InputStream stream(scratch_file("members", file));
  Reading reading;
  std::array<char, 777> some{};
  try {
    while (const std::size_t size = stream.read(some)) {
      reading.text.append(some.data(), size);
      if (reading.text.size() > kMaxText) return {.text = {}, .is_too_long = true};
    }
  } catch (const Error& error) {
    if (error.code() != ExitCode::BadInput) throw;
    reading.is_rejected = true;
  }
  return reading;
}

void compare(const Reading& reading, const std::optional<std::string>& expected) {
  MCPP_CHECK(reading.is_rejected || (expected && reading.text == *expected), "read ", reading.text.size(), " bytes of ",
             expected ? expected->size() : 0);
}

}  // namespace

void gzip_members(std::string_view input) {
  const std::string file = file_of(input, &gzip);
  if (begins_as_zstd(file)) return;  // the gzip oracle does not read zstd
  const Reading reading = read(file);
  if (reading.is_too_long) return;
  const std::optional<std::string> expected = begins_as_gzip(file) ? text_of_gzip(file) : std::optional(file);
  compare(reading, expected);
  MCPP_CHECK(!(expected && reading.is_rejected), "rejected although it is intact");
}

/// An intact file may be rejected here, because streaming limits the window of a frame.
void zstd_frames(std::string_view input) {
  const std::string file = file_of(input, &zstd);
  if (!begins_as_zstd(file)) return;
  const Reading reading = read(file);
  if (!reading.is_too_long) compare(reading, text_of_zstd(file));
}

}  // namespace mcpp::fuzz
