// Operations on texts, as methods of Python's str.
#pragma once
#include <optional>
#include <string>
#include <string_view>

#include "data/jinja/value.h"

namespace mcpp::jinja {

std::string upper(std::string_view text);
std::string lower(std::string_view text);
// Throw BadInput for text that is not ASCII.
std::string capitalize(std::string_view text);
std::string title(std::string_view text);
/// Removes the characters in `chars`, or white space if it is empty, from the chosen ends.
std::string strip(std::string_view text, std::string_view chars = "", bool left = true, bool right = true);
/// Replaces up to `count` occurrences; all if it is negative. Throws BadInput if the result is too long.
std::string replace_text(std::string_view text, std::string_view old, std::string_view replacement, i64 count = -1);

/// Joins texts. Throws BadInput if the result is too long.
std::string join_texts(const std::vector<std::string>& parts, const std::string& separator);

/// Calls a method of a text. Returns std::nullopt if there is no such method.
std::optional<Value> call_text_method(const std::string& text, const std::string& name, const Arguments& arguments);

}  // namespace mcpp::jinja
