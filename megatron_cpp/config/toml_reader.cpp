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

struct Located {
  Position position;
  Setting setting;
};

void collect(const toml::table& table, const std::string& section, const std::string& name,
             std::vector<Located>& found) {
  for (const auto& [key, node] : table) {
    const Position at = position_of(key.source());
    const std::string full = section.empty() ? std::string(key.str()) : str(section, ".", key.str());
    found.push_back({at, {full, to_value(node), str(name, ":", at.first, ":", at.second), full}});
    if (section.empty() && node.is_table()) collect(*node.as_table(), full, name, found);
  }
}

}  // namespace

void read_toml(std::string_view toml, const std::string& name, SettingsReader& reader) {
  std::vector<Located> found;
  try {
    collect(toml::parse(toml), "", name, found);
  } catch (const toml::parse_error& error) {
    const Position at = position_of(error.source());
    return reader.add_gap(str(name, ":", at.first, ":", at.second, ": ", error.description()));
  }
  // A table is ordered by name; people expect the order of the text. Headers come before their keys either way.
  std::stable_sort(found.begin(), found.end(),
                   [](const Located& a, const Located& b) { return a.position < b.position; });
  for (const Located& located : found) reader.assign(located.setting);
}

std::vector<Value> toml_value(std::string_view text) {
  try {
    const toml::table table = toml::parse(str("value = ", text));
    if (table.size() == 1) return {to_value(table.begin()->second)};
  } catch (const toml::parse_error&) {
    // Not TOML: the caller treats it as plain text.
  }
  return {};
}

}  // namespace mcpp
