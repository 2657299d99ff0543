// Parsing of JSON lines, as common in text datasets.
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace mcpp {

/// Returns the string members `keys` of a line that is a JSON object. Other members may have any value, including NaN,
/// Infinity and numbers too large for fp64, which Python's json module writes. On an error, sets `problem` to its
/// description; the result is then incomplete.
std::vector<std::string> read_string_members(std::string_view line, const std::vector<std::string>& keys,
                                             std::string& problem);

/// Returns true if `line` is a JSON object with at least one member.
bool is_json_object_with_members(std::string_view line);

}  // namespace mcpp
