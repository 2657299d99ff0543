// How byte-level vocabularies spell bytes: each as a character that can be seen, as GPT-2 began to.
#pragma once
#include <optional>
#include <string>
#include <string_view>

#include "base/types.h"

namespace mcpp {

/// U+0120 for a space, U+010A for a newline, and "a" for an "a".
std::string byte_characters(std::string_view bytes);

/// The bytes that `text` spells; nothing when a character of it stands for none.
std::optional<std::string> bytes_of_characters(std::string_view text);

/// The bytes in the order of their characters, in which trainers number them.
std::string bytes_by_character();

}  // namespace mcpp
