#include "data/preprocess/input_format.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/check.h"
#include "base/object_store/stored_file.h"
#include "base/strings.h"
#include "data/preprocess/input_stream.h"
#include "data/preprocess/text_source.h"

namespace mcpp {
namespace {

using Json = nlohmann::json;

/// Parser callback that keeps only the requested members, and drops the contents of lists and objects.
class WantedMembers {
 public:
  explicit WantedMembers(const std::vector<std::string>& keys) : keys_(keys) {}

  bool operator()(int depth, Json::parse_event_t event, const Json& parsed) const {
    constexpr int kMaxDepth = 512;
    check_input(depth <= kMaxDepth, "nested deeper than ", kMaxDepth, " levels");
    if (event != Json::parse_event_t::key) return depth < 2;
    return depth == 1 && std::ranges::find(keys_, parsed.get_ref<const std::string&>()) != keys_.end();
  }

 private:
  const std::vector<std::string>& keys_;
};

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

/// Returns the size of the JSON number that `text` begins with, or 0.
std::size_t number_size(std::string_view text) {
  std::size_t size = text.starts_with('-') ? 1 : 0;
  const auto skip_digits = [&] {
    const std::size_t begin = size;
    while (size < text.size() && is_digit(text[size])) ++size;
    return size > begin;
  };
  const bool has_leading_zero = size + 1 < text.size() && text[size] == '0' && is_digit(text[size + 1]);
  if (has_leading_zero || !skip_digits()) return 0;
  if (size < text.size() && text[size] == '.' && (++size, !skip_digits())) return 0;
  if (size < text.size() && (text[size] == 'e' || text[size] == 'E')) {
    ++size;
    if (size < text.size() && (text[size] == '+' || text[size] == '-')) ++size;
    if (!skip_digits()) return 0;
  }
  return size;
}

/// Returns the size of the JSON string that `text` begins with, including its quotes.
std::size_t string_size(std::string_view text) {
  std::size_t size = 1;
  while (size < text.size() && text[size] != '"') size += text[size] == '\\' ? 2 : 1;
  return std::min(size + 1, text.size());
}

/// Returns the size of the name of a non-finite number that `text` begins with, or 0.
std::size_t special_number_size(std::string_view text) {
  for (const std::string_view name : {"NaN", "Infinity", "-Infinity"})
    if (text.starts_with(name)) return name.size();
  return 0;
}

/// Replaces numbers that the parser rejects, because they are not finite or too large for fp64, by null.
std::string without_special_numbers(std::string_view line) {
  std::string changed;
  while (!line.empty()) {
    std::size_t size = line[0] == '"' ? string_size(line) : special_number_size(line);
    const bool is_special = line[0] != '"' && size > 0;
    const std::size_t number = size == 0 ? number_size(line) : 0;
    const bool is_rejected = is_special || (number > 0 && !Json::accept(line.substr(0, number)));
    size = std::max({size, number, std::size_t{1}});
    changed.append(is_rejected ? "null" : line.substr(0, size));
    line.remove_prefix(size);
  }
  return changed;
}

Json parse(std::string_view line, const std::vector<std::string>& keys) {
  try {
    return Json::parse(line, WantedMembers(keys));
  } catch (const Json::exception&) {
    const std::string changed = without_special_numbers(line);
    if (changed == line) throw;
    return Json::parse(changed, WantedMembers(keys));
  }
}

}  // namespace

std::vector<std::string> read_string_members(std::string_view line, const std::vector<std::string>& keys,
                                             std::string& problem) {
  std::vector<std::string> values;
  try {
    Json object = parse(line, keys);
    if (!object.is_object()) problem = "not a JSON object; each line must be one";
    for (const std::string& key : keys) {
      if (!problem.empty()) break;
      const auto it = object.find(key);
      if (it == object.end()) {
        problem = str("has no key \"", key, "\"");
      } else if (!it->is_string()) {
        problem = str("\"", key, "\" is not a string");
      } else {
        values.push_back(std::move(it->get_ref<std::string&>()));
      }
    }
  } catch (const Json::exception& error) {
    problem = str("malformed JSON: ", error.what());
  } catch (const Error& error) {
    problem = error.what();
  }
  return values;
}

OrderedJson parse_data_line(std::string_view line) {
  try {
    return OrderedJson::parse(line);
  } catch (const OrderedJson::exception&) {
    const std::string changed = without_special_numbers(line);
    if (changed == line) throw;
    return OrderedJson::parse(changed);
  }
}

bool is_json_object_with_members(std::string_view line) {
  try {
    bool has_members = false;
    const auto keep_outermost = [&](int depth, Json::parse_event_t event, const Json&) {
      has_members |= event == Json::parse_event_t::key;
      return depth == 0;
    };
    if (!line.starts_with('{')) return false;
    const Json object = Json::parse(without_special_numbers(line), keep_outermost);
    return object.is_object() && has_members;
  } catch (const Json::exception&) {
    return false;
  }
}

namespace {

constexpr std::size_t kHeadBytes = std::size_t{1} << 18;

std::string lower_case_extension(const Path& path) {
  return to_lower(path.extension().string());
}

bool has_json_name(const Path& path) {
  const auto is_one_of = [](const std::string& extension, std::initializer_list<std::string_view> names) {
    return std::ranges::find(names, extension) != names.end();
  };
  const bool is_compressed = is_one_of(lower_case_extension(path), {".gz", ".gzip", ".zst", ".zstd"});
  const std::string extension = lower_case_extension(is_compressed ? path.stem() : path.filename());
  return is_one_of(extension, {".jsonl", ".ndjson", ".json"});
}

/// Returns the first bytes of the file, decompressed.
std::string read_head(InputStream& stream) {
  std::string head(kHeadBytes, '\0');
  std::size_t size = 0;
  while (size < head.size()) {
    const std::size_t got = stream.read(std::span(head).subspan(size));
    if (got == 0) break;
    size += got;
  }
  head.resize(size);
  return head;
}

/// Returns true if `text`, an incomplete line, begins with `{"`.
bool begins_object(std::string_view text) {
  constexpr std::string_view kBlanks = " \t\r";
  if (!text.starts_with('{')) return false;
  const std::size_t next = text.find_first_not_of(kBlanks, 1);
  return next != std::string_view::npos && text[next] == '"';
}

/// Returns true if the text begins like a JSON array of objects, or like an object spread over lines. Neither is prose,
/// and both are rejected with specific messages when they are read as JSON lines.
bool begins_other_json(std::string_view head) {
  constexpr std::string_view kSpace = " \t\r\n";
  const std::size_t first = head.find_first_not_of(kSpace);
  if (first == std::string_view::npos || (head[first] != '[' && head[first] != '{')) return false;
  const std::size_t second = head.find_first_not_of(kSpace, first + 1);
  if (second == std::string_view::npos) return false;
  if (head[first] == '[') return head[second] == '{';
  return head[second] == '"' && head.substr(first, second - first).find('\n') != std::string_view::npos;
}

}  // namespace

bool looks_like_json_lines(std::string_view head) {
  constexpr int kMaxLines = 8;
  constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
  if (head.starts_with(kByteOrderMark)) head.remove_prefix(kByteOrderMark.size());
  for (int lines = 0; lines < kMaxLines && !head.empty();) {
    const std::size_t newline = head.find('\n');
    std::string_view line = head.substr(0, newline);
    head.remove_prefix(std::min(head.size(), line.size() + 1));
    if (is_blank(line)) continue;
    line.remove_prefix(line.find_first_not_of(" \t\r"));
    if (lines++ == 0 && !line.starts_with('{')) return false;
    const bool is_complete = newline != std::string_view::npos || line.size() < kHeadBytes / 2;
    if (is_complete ? is_json_object_with_members(line) : begins_object(line)) return true;
  }
  return false;
}

bool is_json_lines(const Path& path, InputFormat format) {
  if (format != InputFormat::Auto) return format == InputFormat::JsonLines;
  if (has_json_name(path)) return true;
  if (!stored_file_exists(path)) return false;
  InputStream stream(path);
  const std::string head = read_head(stream);
  const bool has_text_name = path.filename().string().find(".txt") != std::string::npos;
  return looks_like_json_lines(head) || (!has_text_name && begins_other_json(head));
}

void check_json_keys_are_used(const std::vector<std::string>& keys, const std::vector<bool>& files_are_json_lines,
                              std::string_view option) {
  const bool any_json = std::ranges::find(files_are_json_lines, true) != files_are_json_lines.end();
  check_input(any_json || keys == std::vector<std::string>{"text"}, option, "=", join(keys, ","),
              ": the input is plain text, which has no keys; remove ", option,
              ", or pass --input_format=json_lines if each line is a JSON object");
}

}  // namespace mcpp
