// Formats of text files and their detection.
#pragma once
#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "base/fields.h"
#include "base/file.h"
#include "base/json.h"

namespace mcpp {

// Parsing of JSON lines, as common in text datasets.

/// Returns the string members `keys` of a line that is a JSON object. Other members may have any value, including NaN,
/// Infinity and numbers too large for fp64, which Python's json module writes. On an error, sets `problem` to its
/// description; the result is then incomplete.
std::vector<std::string> read_string_members(std::string_view line, const std::vector<std::string>& keys,
                                             std::string& problem);

/// Parses a line of JSON, with the same tolerance for numbers. Throws OrderedJson::exception.
OrderedJson parse_data_line(std::string_view line);

/// Returns true if `line` is a JSON object with at least one member.
bool is_json_object_with_members(std::string_view line);

enum class InputFormat { Auto, Text, JsonLines };
template <>
struct EnumNames<InputFormat> {
  static constexpr std::array<std::string_view, 3> value{"auto", "text", "json_lines"};
};
inline constexpr std::string_view kInputFormatHelp =
    "text, json_lines (one JSON object per line), or auto: JSON lines are recognized by the name (.jsonl, .ndjson, "
    ".json) or by the first lines";

/// Returns true if any of the first lines of `head`, the beginning of a text, is a JSON object with members.
bool looks_like_json_lines(std::string_view head);

/// Returns true if `path` should be read as JSON lines. Auto decides by the extension, ignoring case and the extension
/// of a compression format, and then by the content, except that a pipe is not read. Throws BadInput if the file cannot
/// be read.
bool is_json_lines(const Path& path, InputFormat format);

/// Throws BadInput if `keys` differ from the default, "text", although no file has JSON lines. `option` names the keys.
void check_json_keys_are_used(const std::vector<std::string>& keys, const std::vector<bool>& files_are_json_lines,
                              std::string_view option);

}  // namespace mcpp
