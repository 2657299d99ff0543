// Parsing of lines of JSON Lines files that users write.
#pragma once
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace mcpp {

/// Returns the object of a line. Throws BadInput if the line is malformed, is no object, or has a key twice.
nlohmann::json parse_json_line(std::string_view line);
/// Returns the string member `key`. Throws BadInput if there is none.
std::string text_member(const nlohmann::json& object, const char* key);

}  // namespace mcpp
