// Representation of bytes in byte-level vocabularies: each as a visible character, as in GPT-2.
#pragma once
#include <optional>
#include <string>
#include <string_view>

#include "base/types.h"

namespace mcpp {

/// Returns the characters of bytes: U+0120 for a space, U+010A for a newline, and "a" for an "a".
std::string byte_characters(std::string_view bytes);

/// Returns the bytes that `text` represents, or std::nullopt if it contains a character that represents no byte.
std::optional<std::string> bytes_of_characters(std::string_view text);

/// Returns all bytes in the order of their characters, which is the order of their ids in trainers.
std::string bytes_by_character();

}  // namespace mcpp
