// gzip files, against an oracle that has the whole file in memory.
#include <zlib.h>

#include <algorithm>
#include <array>
#include <optional>

#include "base/check.h"
#include "data/prepare/input_stream.h"
#include "tests/fuzz/targets.h"

namespace mcpp::fuzz {
namespace {

constexpr int kGzipOnly = 15 + 16;
constexpr std::size_t kMostText = 1 << 20;  // a few bytes of fuzz can be packed zeros without end

std::string packed(std::string_view text) {
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

/// Input as parts of a kind, a length and so many bytes, which are put together to a file.
std::string file_of(std::string_view input) {
  std::string file;
  while (input.size() >= 2) {
    const auto kind = static_cast<u8>(input[0]) % 4;
    const std::string_view part = input.substr(2, static_cast<u8>(input[1]));
    input.remove_prefix(2 + part.size());
    std::string member = packed(part);
    if (kind == 1 && !part.empty()) {  // spoilt
      char& byte = member[static_cast<u8>(part[0]) % member.size()];
      byte = static_cast<char>(byte ^ 1 << part.size() % 8);
    }
    if (kind == 2) member = part;
    if (kind == 3) member.assign(part.size(), '\0');
    file += member;
  }
  return file;
}

/// What the member at the beginning of `file` unpacks to, taken from it; nothing when it is damaged.
std::optional<std::string> take_member(std::string_view& file) {
  z_stream z{};
  MCPP_CHECK(::inflateInit2(&z, kGzipOnly) == Z_OK);
  std::string text(kMostText, '\0');
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

std::optional<std::string> text_of(std::string_view file) {
  if (!file.starts_with("\x1F\x8B")) return std::string(file);
  std::string text;
  do {
    const std::optional<std::string> member = take_member(file);
    if (!member) return std::nullopt;
    text += *member;
  } while (file.starts_with("\x1F\x8B"));
  const bool only_zeros = std::ranges::all_of(file, [](char c) { return c == '\0'; });
  return only_zeros ? std::optional(text) : std::nullopt;
}

}  // namespace

void gzip_members(std::string_view input) {
  const std::string file = file_of(input);
  const std::optional<std::string> expected = text_of(file);
  InputStream stream(scratch_file("members.gz", file));
  std::string text;
  std::array<char, 777> some{};
  try {
    while (const std::size_t size = stream.read(some)) {
      text.append(some.data(), size);
      if (text.size() > kMostText) return;  // more than the oracle unpacks
    }
  } catch (const Error&) {
    MCPP_CHECK(!expected, "refused, though it is sound");
    throw;
  }
  MCPP_CHECK(expected && text == *expected, "read ", text.size(), " bytes of ", expected ? expected->size() : 0);
}

}  // namespace mcpp::fuzz
