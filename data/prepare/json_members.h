// Lines of JSON, as programs write data sets of text.
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace mcpp {

/// Returns the strings of the members `keys` of the JSON object that `line` is. Other members may be anything, also
/// NaN, Infinity and numbers too large for fp64, which Python's json writes. If there is a problem, `problem` describes
/// it and the result is not complete.
std::vector<std::string> read_string_members(std::string_view line, const std::vector<std::string>& keys,
                                             std::string& problem);

/// Returns true if `line` is a JSON object that is not empty.
bool is_json_object_with_members(std::string_view line);

}  // namespace mcpp
