#include "data/tokenizer/bpe/byte_characters.h"

#include <algorithm>
#include <array>
#include <numeric>

namespace mcpp {
namespace {

constexpr u32 kFirstOfHidden = 256;  // invisible bytes have the characters from here on, in order

constexpr bool can_be_seen(u32 byte) {
  return (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || (byte >= 0xAE && byte <= 0xFF);
}

constexpr std::array<u32, 256> make_characters() {
  std::array<u32, 256> characters{};
  u32 next = kFirstOfHidden;
  for (u32 byte = 0; byte < 256; ++byte) characters[byte] = can_be_seen(byte) ? byte : next++;
  return characters;
}

constexpr std::array<u32, 256> kCharacters = make_characters();
constexpr u32 kEnd = kFirstOfHidden + 68;  // there are 68 invisible bytes

constexpr std::array<i32, kEnd> make_bytes() {
  std::array<i32, kEnd> bytes{};
  bytes.fill(-1);
  for (u32 byte = 0; byte < 256; ++byte) bytes[kCharacters[byte]] = static_cast<i32>(byte);
  return bytes;
}

constexpr std::array<i32, kEnd> kBytes = make_bytes();

}  // namespace

std::string byte_characters(std::string_view bytes) {
  std::string text;
  for (const char c : bytes) {
    const u32 character = kCharacters[static_cast<u8>(c)];
    if (character < 0x80) {
      text += static_cast<char>(character);
    } else {
      text += static_cast<char>(0xC0 | character >> 6);
      text += static_cast<char>(0x80 | (character & 0x3F));
    }
  }
  return text;
}

std::optional<std::string> bytes_of_characters(std::string_view text) {
  std::string bytes;
  for (std::size_t i = 0; i < text.size(); ++i) {
    u32 character = static_cast<u8>(text[i]);
    if (character >= 0x80) {  // none takes more than two bytes in UTF-8
      if (character < 0xC2 || character >= 0xE0 || i + 1 == text.size()) return std::nullopt;
      character = (character & 0x1F) << 6 | (static_cast<u8>(text[++i]) & 0x3F);
    }
    if (character >= kEnd || kBytes[character] < 0) return std::nullopt;
    bytes += static_cast<char>(kBytes[character]);
  }
  return bytes;
}

std::string bytes_by_character() {
  std::string bytes(256, '\0');
  std::iota(bytes.begin(), bytes.end(), '\0');
  std::ranges::sort(bytes, {}, [](char byte) { return kCharacters[static_cast<u8>(byte)]; });
  return bytes;
}

}  // namespace mcpp
