#include "megatron_cpp/config/toml_reader.h"

#include <toml++/toml.h>

#include <algorithm>
#include <utility>

#include "base/strings.h"

namespace mcpp {
namespace {

using Position = std::pair<u32, u32>;  // line, column

Value to_value(const toml::node& node) {
  if (const auto* b = node.as_boolean()) return {b->get()};
  if (const auto* i = node.as_integer()) return {i->get()};
  if (const auto* d = node.as_floating_point()) return {d->get()};
  if (const auto* s = node.as_string()) return {s->get()};
  if (const auto* array = node.as_array()) {
    Value::List list;
    for (const toml::node& element : *array) list.push_back(to_value(element));
    return {std::move(list)};
  }
  return {Value::Other{node.is_table() ? "a table" : "a date or time"}};
}

Position position_of(const toml::source_region& region) {
  return {region.begin.line, region.begin.column};
}

/// Measures how deep a text nests, to bound the parser's recursion: toml++ recurses for dotted keys, too. Ignores
/// brackets and dots in strings and comments.
class NestingScan {
 public:
  explicit NestingScan(std::string_view text) : text_(text) {}

  /// Returns the offset at which the text is nested deeper than kMaxDepth, or npos.
  std::size_t find() {
    while (at_ < text_.size()) {
      const char c = text_[at_];
      if (c == '"' || c == '\'') {
        skip_string(c);
        continue;
      }
      if (c == '#') {
        at_ = std::min(text_.find('\n', at_), text_.size());
        continue;
      }
      count(c);
      if (brackets_ > kMaxDepth || dots_ > kMaxDepth) return at_;
      ++at_;
    }
    return std::string_view::npos;
  }

  static constexpr int kMaxDepth = 32;

 private:
  void count(char c) {
    if (c == '[' || c == '{') ++brackets_;
    if (c == ']' || c == '}') brackets_ = std::max(brackets_ - 1, 0);
    if (c == '.') ++dots_;
    if (c == '\n' || c == '=' || c == ',') dots_ = 0;
  }
  /// Skips a string of one line or, after three quotes, of several.
  void skip_string(char quote) {
    const std::string three(3, quote);
    const bool is_long = text_.substr(at_).starts_with(three);
    at_ += is_long ? 3 : 1;
    while (at_ < text_.size()) {
      if (quote == '"' && text_[at_] == '\\') {
        at_ += 2;
      } else if (is_long ? text_.substr(at_).starts_with(three) : text_[at_] == quote) {
        at_ += is_long ? 3 : 1;
        return;
      } else if (!is_long && text_[at_] == '\n') {
        return;  // not TOML; the parser reports it
      } else {
        ++at_;
      }
    }
    at_ = text_.size();
  }

  std::string_view text_;
  std::size_t at_ = 0;
  int brackets_ = 0, dots_ = 0;
};

struct Located {
  Position position;
  Setting setting;
  SettingsReader* reader;
};

/// Text with its own reader: the entire file, or one of its tables.
struct Part {
  SettingsReader* reader;
  std::string prefix = {};  ///< prefix of its keys in the file: "" or "ranks_2."
};

class Collector {
 public:
  Collector(const std::string& name, const TableReader& table_reader) : name_(name), table_reader_(table_reader) {}

  void collect(const toml::table& table, const std::string& section, const Part& part) {
    for (const auto& [key, node] : table) {
      const std::string name(key.str());
      SettingsReader* reader =
          section.empty() && part.prefix.empty() && node.is_table() ? table_reader_(name) : nullptr;
      if (reader != nullptr) {
        collect(*node.as_table(), "", {reader, name + "."});
        continue;
      }
      const Position at = position_of(key.source());
      const std::string full_name = section.empty() ? name : str(section, ".", name);
      located_.push_back(
          {at,
           {full_name, to_value(node), str(name_, ":", at.first, ":", at.second), part.prefix + full_name},
           part.reader});
      if (section.empty() && node.is_table()) collect(*node.as_table(), full_name, part);
    }
  }

  /// Assigns the settings in the order of the text; tables are ordered by name. Headers precede their keys in both
  /// orders.
  void assign() {
    std::stable_sort(located_.begin(), located_.end(),
                     [](const Located& a, const Located& b) { return a.position < b.position; });
    for (const Located& located : located_) located.reader->assign(located.setting);
  }

 private:
  const std::string& name_;
  const TableReader& table_reader_;
  std::vector<Located> located_;
};

}  // namespace

void read_toml(std::string_view toml, const std::string& name, SettingsReader& reader) {
  read_toml(toml, name, reader, [](std::string_view) { return nullptr; });
}

void read_toml(std::string_view toml, const std::string& name, SettingsReader& rest, const TableReader& table_reader) {
  if (const std::size_t deep = NestingScan(toml).find(); deep != std::string_view::npos) {
    const std::string_view before = toml.substr(0, deep);
    const auto line = 1 + std::ranges::count(before, '\n');
    const std::size_t column = deep - (before.rfind('\n') + 1) + 1;  // npos + 1 == 0
    return rest.add_gap(str(name, ":", line, ":", column, ": nested deeper than ", NestingScan::kMaxDepth, " levels"));
  }
  Collector collector(name, table_reader);
  try {
    collector.collect(toml::parse(toml), "", {&rest});
  } catch (const toml::parse_error& error) {
    const Position at = position_of(error.source());
    return rest.add_gap(str(name, ":", at.first, ":", at.second, ": ", error.description()));
  }
  collector.assign();
}

std::vector<Value> toml_value(std::string_view text) {
  if (NestingScan(text).find() != std::string_view::npos) return {};
  try {
    const toml::table table = toml::parse(str("value = ", text));
    if (table.size() == 1) return {to_value(table.begin()->second)};
  } catch (const toml::parse_error&) {
    // not TOML: the caller treats it as plain text
  }
  return {};
}

}  // namespace mcpp
