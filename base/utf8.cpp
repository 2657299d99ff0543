#include "base/utf8.h"

#include <algorithm>

namespace mcpp {
namespace {

bool is_continuation(char c) {
  return (static_cast<u8>(c) & 0xC0) == 0x80;
}

/// Returns the length announced by the first byte; 0 if it starts no sequence.
i64 announced_length(u8 first) {
  if (first < 0x80) return 1;
  if (first < 0xC2) return 0;  // continuation byte, or overlong
  if (first < 0xE0) return 2;
  if (first < 0xF0) return 3;
  return first < 0xF5 ? 4 : 0;
}

/// Returns true if the second byte excludes overlong forms, surrogates and code points above U+10FFFF.
bool is_valid_second_byte(u8 first, u8 second) {
  switch (first) {
    case 0xE0:
      return second >= 0xA0;
    case 0xED:
      return second < 0xA0;
    case 0xF0:
      return second >= 0x90;
    case 0xF4:
      return second < 0x90;
    default:
      return true;
  }
}

/// Returns the number of valid bytes at the start of `text`, up to `length`.
i64 valid_prefix(std::string_view text, i64 length) {
  i64 valid = 1;
  while (valid < length && valid < static_cast<i64>(text.size())) {
    const char next = text[static_cast<std::size_t>(valid)];
    if (!is_continuation(next)) break;
    if (valid == 1 && !is_valid_second_byte(static_cast<u8>(text[0]), static_cast<u8>(next))) break;
    ++valid;
  }
  return valid;
}

}  // namespace

i64 utf8_sequence_length(std::string_view text) {
  if (text.empty()) return 0;
  const i64 length = announced_length(static_cast<u8>(text[0]));
  return length > 0 && valid_prefix(text, length) == length ? length : 0;
}

i64 find_invalid_utf8(std::string_view text) {
  for (std::size_t i = 0; i < text.size();) {
    if (static_cast<u8>(text[i]) < 0x80) {
      ++i;
      continue;
    }
    const i64 length = utf8_sequence_length(text.substr(i));
    if (length == 0) return static_cast<i64>(i);
    i += static_cast<std::size_t>(length);
  }
  return -1;
}

std::string replace_invalid_utf8(std::string_view text) {
  std::string result;
  while (true) {
    const i64 bad = find_invalid_utf8(text);
    if (bad < 0) return result.append(text);
    result.append(text.substr(0, static_cast<std::size_t>(bad))).append("\xEF\xBF\xBD");
    text.remove_prefix(static_cast<std::size_t>(bad) + 1);
  }
}

i64 count_characters(std::string_view text) {
  return std::ranges::count_if(text, [](char c) { return !is_continuation(c); });
}

i64 utf8_incomplete_suffix(std::string_view text) {
  for (std::size_t back = 1; back <= 3 && back <= text.size(); ++back) {
    const std::string_view tail = text.substr(text.size() - back);
    if (is_continuation(tail[0])) continue;
    const i64 length = announced_length(static_cast<u8>(tail[0]));
    const auto have = static_cast<i64>(back);
    return length > have && valid_prefix(tail, length) == have ? have : 0;
  }
  return 0;
}

std::size_t utf8_boundary(std::string_view text, std::size_t position) {
  if (position >= text.size()) return text.size();
  std::size_t begin = position;
  for (int i = 0; i < 3 && begin > 0 && is_continuation(text[begin]); ++i) --begin;
  return is_continuation(text[begin]) ? position : begin;
}

}  // namespace mcpp
