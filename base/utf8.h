// Validation of UTF-8 text (RFC 3629: no surrogates, no overlong forms, at most U+10FFFF).
#pragma once
#include <string>
#include <string_view>

#include "base/types.h"

namespace mcpp {

/// Returns the length of the valid sequence at the start of `text`; 0 if it is invalid or truncated.
i64 utf8_sequence_length(std::string_view text);
/// Returns the byte offset of the first invalid sequence, or -1.
i64 find_invalid_utf8(std::string_view text);
/// Replaces each byte that is not part of a valid sequence by U+FFFD.
std::string replace_invalid_utf8(std::string_view text);
/// Returns the number of characters of valid UTF-8.
i64 count_characters(std::string_view text);
/// Returns the number of bytes (0 to 3) at the end of `text` that start an incomplete sequence.
i64 utf8_incomplete_suffix(std::string_view text);
/// Returns the largest position <= `position` that is not inside a sequence.
std::size_t utf8_boundary(std::string_view text, std::size_t position);

}  // namespace mcpp
