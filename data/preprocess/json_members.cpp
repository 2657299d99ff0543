#include "data/preprocess/json_members.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/check.h"

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

/// Replaces the numbers that the parser rejects by null: those that are not finite or too large for fp64.
std::string without_special_numbers(std::string_view line) {
  std::string changed;
  while (!line.empty()) {
    std::size_t size = line[0] == '"' ? string_size(line) : special_number_size(line);
    const bool is_special = line[0] != '"' && size > 0;
    const std::size_t number = size == 0 ? number_size(line) : 0;
    const bool is_refused = is_special || (number > 0 && !Json::accept(line.substr(0, number)));
    size = std::max({size, number, std::size_t{1}});
    changed.append(is_refused ? "null" : line.substr(0, size));
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
      const auto found = object.find(key);
      if (found == object.end()) {
        problem = str("has no key \"", key, "\"");
      } else if (!found->is_string()) {
        problem = str("\"", key, "\" is not a string");
      } else {
        values.push_back(std::move(found->get_ref<std::string&>()));
      }
    }
  } catch (const Json::exception& error) {
    problem = str("malformed JSON: ", error.what());
  } catch (const Error& error) {
    problem = error.what();
  }
  return values;
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

}  // namespace mcpp
