// Checks on UTF-8 text (RFC 3629: no surrogates, no overlong forms, at most U+10FFFF).
#pragma once
#include <string>
#include <string_view>

#include "base/types.h"

namespace mcpp {

/// Bytes of the valid sequence at the start of `text`; 0 when it is invalid or cut short.
i64 utf8_sequence_length(std::string_view text);
/// Byte offset of the first invalid sequence, or -1.
i64 find_invalid_utf8(std::string_view text);
/// Each byte that is not part of a valid sequence becomes U+FFFD.
std::string replace_invalid_utf8(std::string_view text);
/// How many bytes at the end of `text` begin a sequence that more bytes could still complete: 0 to 3.
i64 utf8_incomplete_suffix(std::string_view text);
/// The largest position <= `position` that does not lie inside a sequence.
std::size_t utf8_boundary(std::string_view text, std::size_t position);

}  // namespace mcpp
