#include "megatron_cpp/config/settings.h"

#include <toml++/toml.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <utility>

#include "base/check.h"
#include "base/strings.h"
#include "base/utf8.h"
#include "megatron_cpp/config/foreign_names.h"

namespace mcpp {
namespace {

using Kind = FieldType::Kind;

/// Every integral double up to 2^53 is exact; above, a value such as 1e18 is ambiguous.
constexpr double kLargestExactDouble = 9007199254740992.0;

std::string_view section_of(std::string_view key) {
  const std::size_t dot = key.find('.');
  return dot == std::string_view::npos ? "" : key.substr(0, dot);
}

std::string_view name_of(std::string_view key) {
  return key.substr(key.find('.') + 1);
}

/// Parses the text of a command line for a field of this type. Strings are literal unless quoted. Everything
/// else is TOML, or else a string, which convert() then rejects with a message that shows it.
Value read_raw(const std::string& text, Kind kind) {
  const bool is_text = kind == Kind::Text || kind == Kind::Name;
  const bool is_quoted = !text.empty() && (text[0] == '"' || text[0] == '\'');
  if (is_text && !is_quoted) return {text};
  const std::vector<Value> parsed = toml_value(text);
  return parsed.empty() ? Value{text} : parsed[0];
}

Value::List read_raw_list(const std::string& text) {
  if (text.empty()) return {};
  Value::List list;
  for (std::string& element : split(text, ',')) list.push_back({Value::Raw{std::move(element)}});
  return list;
}

bool mentions(std::string_view text, std::string_view word) {
  const auto is_word = [](char c) { return c == '_' || std::isalnum(static_cast<unsigned char>(c)) != 0; };
  for (std::size_t at = text.find(word); at != std::string_view::npos; at = text.find(word, at + 1)) {
    const std::size_t end = at + word.size();
    if ((at == 0 || !is_word(text[at - 1])) && (end == text.size() || !is_word(text[end]))) return true;
  }
  return false;
}

/// Returns a setting as repeated in messages: many problems of one long list should not each show all of it.
std::string shortened(const std::string& spelling) {
  constexpr std::size_t kLongest = 200;
  return spelling.size() <= kLongest ? spelling : spelling.substr(0, kLongest) + "...";
}

/// Keys whose values are free text; other strings are names.
constexpr std::array<std::string_view, 2> kFreeTexts{"prompt", "text"};

/// Names occur in manifests, logs and lists with one line per name. A name with a newline would be saved but could not
/// be read back.
std::string name_problem(std::string_view key, const Value& value) {
  const std::string* text = std::get_if<std::string>(&value.data);
  if (text == nullptr || std::ranges::find(kFreeTexts, key) != kFreeTexts.end()) return "";
  if (find_invalid_utf8(*text) >= 0) return str("must be UTF-8, not ", toml_string(replace_invalid_utf8(*text)));
  const bool is_plain = std::ranges::none_of(*text, [](char c) {
    const auto byte = static_cast<unsigned char>(c);
    return byte < 0x20 || byte == 0x7f;
  });
  return is_plain ? "" : str("must not have newlines or other control characters, as ", toml_string(*text), " has");
}

/// Returns a hint on the name of a value in other programs, or "".
std::string value_hint(const Field& field, const Value& value) {
  const auto* raw = std::get_if<Value::Raw>(&value.data);
  const auto* text = raw ? &raw->text : std::get_if<std::string>(&value.data);
  const std::string_view advice = text ? find_value_advice(field.key, *text) : std::string_view();
  return advice.empty() ? "" : str("; ", advice);
}

std::string refused(const FieldType& type, const Value& value) {
  return str("must be ", type.describe(), ", not ", value.describe());
}

/// Returns the file of a location "run.toml:3:1" without line and column; any other location unchanged.
std::string_view source_of(std::string_view location) {
  for (int part = 0; part < 2; ++part) {
    const std::size_t colon = location.find_last_not_of("0123456789");
    if (colon == std::string_view::npos || colon + 1 == location.size() || location[colon] != ':') break;
    location = location.substr(0, colon);
  }
  return location;
}

/// Converts a number to the field's type and checks the constraint. Returns the problem, or "".
std::string convert_number(const FieldType& type, const Constraint& constraint, Value& value) {
  const Value original = value;
  double number = 0;
  if (const i64* integer = std::get_if<i64>(&value.data)) {
    number = static_cast<double>(*integer);
    if (type.kind == Kind::Real) value.data = number;
  } else if (const double* real = std::get_if<double>(&value.data)) {
    number = *real;
    if (type.kind == Kind::Integer) {
      if (number != std::trunc(number) || std::abs(number) > kLargestExactDouble) return refused(type, value);
      value.data = static_cast<i64>(number);
    }
  } else {
    return refused(type, value);
  }
  if (!std::isfinite(number)) return str("must be finite, not ", original.describe());
  if (!constraint.accepts(number)) return str("must be ", constraint.describe(), ", not ", original.describe());
  return "";
}

std::string convert_scalar(const FieldType& type, const Constraint& constraint, Value& value) {
  if (const auto* raw = std::get_if<Value::Raw>(&value.data)) value = read_raw(std::string(raw->text), type.kind);
  switch (type.kind) {
    case Kind::Table: {
      auto* table = std::get_if<Value::Table>(&value.data);
      return table ? type.convert_table(*table) : refused(type, value);
    }
    case Kind::Bool:
      return std::holds_alternative<bool>(value.data) ? "" : refused(type, value);
    case Kind::Text:
      return std::holds_alternative<std::string>(value.data) ? "" : refused(type, value);
    case Kind::Name: {
      const std::string* name = std::get_if<std::string>(&value.data);
      const auto it = name ? std::find(type.names.begin(), type.names.end(), *name) : type.names.end();
      if (it == type.names.end()) return refused(type, value);
      value.data = static_cast<i64>(it - type.names.begin());
      return "";
    }
    default:
      return convert_number(type, constraint, value);
  }
}

}  // namespace

std::string Value::describe() const {
  if (const bool* b = std::get_if<bool>(&data)) return *b ? "true" : "false";
  if (const i64* i = std::get_if<i64>(&data)) return std::to_string(*i);
  if (const double* d = std::get_if<double>(&data)) return shortest(*d);
  if (const std::string* s = std::get_if<std::string>(&data)) return toml_string(*s);
  if (const Raw* raw = std::get_if<Raw>(&data)) return toml_string(raw->text);
  if (const Other* other = std::get_if<Other>(&data)) return other->what;
  if (std::holds_alternative<Table>(data)) return "a table";
  return "a list";
}

std::string toml_string(std::string_view text) {
  static constexpr std::string_view kHex = "0123456789ABCDEF";
  std::string out = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out.append({'\\', c});
    } else if (byte < 0x20 || byte == 0x7f) {
      out.append("\\u00").append({kHex[byte >> 4], kHex[byte & 15]});
    } else {
      out += c;
    }
  }
  return out + '"';
}

std::string FieldType::describe() const {
  std::vector<std::string> quoted_names;
  for (const std::string& name : names) quoted_names.push_back(toml_string(name));
  switch (kind) {
    case Kind::Bool:
      return "true or false";
    case Kind::Integer:
      return is_one_or_list ? "an integer or a list of integers" : is_list ? "a list of integers" : "an integer";
    case Kind::Real:
      return is_one_or_list ? "a number or a list of numbers" : is_list ? "a list of numbers" : "a number";
    case Kind::Text:
      return is_one_or_list ? "a string or a list of strings" : is_list ? "a list of strings" : "a string";
    case Kind::Table:
      return is_list ? "a list of tables, each below a line [[section.key]]" : "a table";
    default:
      return str("one of ", join(quoted_names, ", "), is_one_or_list ? ", or a list of them" : "");
  }
}

std::string_view Field::section() const {
  return section_of(key);
}

std::string_view Field::name() const {
  return name_of(key);
}

std::string Field::convert(Value& value) const {
  const auto convert_one = [this](const FieldType& element_type, Value& element) {
    const std::string problem = convert_scalar(element_type, constraint, element);
    return problem.empty() ? name_problem(key, element) : problem;
  };
  if (!type.is_list) return convert_one(type, value);
  if (const auto* raw = std::get_if<Value::Raw>(&value.data)) {
    const std::string text = raw->text;
    if (text.starts_with('[')) {
      const std::vector<Value> parsed = toml_value(text);
      if (parsed.empty()) return str(toml_string(text), " is not a TOML list; write [\"a\", \"b\"] or a,b");
      value = parsed[0];
    } else {
      value.data = read_raw_list(text);
    }
  }
  if (std::holds_alternative<Value::Other>(value.data)) return refused(type, value);
  if (!std::holds_alternative<Value::List>(value.data)) value.data = Value::List{value};  // "a" stands for ["a"]
  FieldType element_type = type;
  element_type.is_list = false;
  auto& list = std::get<Value::List>(value.data);
  element_type.is_one_or_list = type.is_one_or_list && list.size() == 1;
  if (type.is_one_or_list && list.empty()) return "must have a value, or a list of values that is not empty";
  for (std::size_t i = 0; i < list.size(); ++i) {
    const std::string problem = convert_one(element_type, list[i]);
    if (!problem.empty()) return list.size() == 1 ? problem : str("element ", i + 1, " ", problem);
  }
  return "";
}

std::string convert_table(const std::vector<Field>& fields, Value::Table& table) {
  std::vector<std::string> names;
  for (const Field& field : fields) names.push_back(field.key);
  for (auto& [key, value] : table) {
    const auto field = std::ranges::find(fields, key, &Field::key);
    if (field == fields.end()) {
      const std::string nearest = nearest_name(key, names);
      return str(key, ": unknown key; ",
                 nearest.empty() ? str("the keys are ", join(names, ", ")) : str("did you mean ", nearest, "?"));
    }
    if (const std::string problem = field->convert(value); !problem.empty()) return str(key, ": ", problem);
  }
  return "";
}

const Field* SettingsReader::find(std::string_view key) const {
  for (const Field& field : fields_) {
    if (field.key == key) return &field;
  }
  const std::string_view present = renamed_key(key);
  return present.empty() ? nullptr : find(present);
}

std::string SettingsReader::suggest(std::string_view key, std::string_view prefix) {
  if (const std::string_view advice = find_advice(name_of(key)); !advice.empty()) return str("; ", advice);
  if (const Field* field = find(find_native_key(name_of(key)))) {
    unreliable_keys_.insert(field->key);
    return str("; did you mean ", prefix, field->key, "?");
  }
  std::vector<std::string> candidates, same_name;
  for (const Field& field : fields_) {
    if (field.section() == section_of(key)) candidates.emplace_back(field.name());
    if (field.name() == name_of(key)) same_name.push_back(field.key);
  }
  if (!same_name.empty()) {
    unreliable_keys_.insert(same_name[0]);
    return str("; did you mean ", prefix, same_name[0], "?");
  }
  const std::string nearest = nearest_name(name_of(key), candidates);
  if (nearest.empty()) return "";
  const std::string section(section_of(key));
  const std::string full = section.empty() ? nearest : section + "." + nearest;
  unreliable_keys_.insert(full);
  return str("; did you mean ", prefix, full, "?");
}

void SettingsReader::assign(const Setting& setting) {
  const std::string origin = setting.location + ": " + shortened(setting.spelling) + ": ";
  const Field* field = find(setting.key);
  if (field == nullptr) {
    if (const std::string problem = unknown(setting); !problem.empty()) add_problem(origin + problem);
    return;
  }
  const bool has_former_name = field->key != setting.key;
  if (has_former_name) former_names_[setting.key] = field->key;
  if (const auto earlier = settings_.find(field->key); earlier != settings_.end()) {
    const Setting& before = earlier->second;
    const bool is_same_source = source_of(before.location) == source_of(setting.location);
    if (before.location == setting.location || (before.key != setting.key && is_same_source)) {
      return add_problem(str(origin, "was already set as ", shortened(before.spelling), "; set it once",
                             before.key == setting.key ? "" : ", as " + field->key));
    }
  }
  Value value = setting.value;
  if (const std::string problem = field->convert(value); !problem.empty()) {
    add_problem(origin + problem + value_hint(*field, setting.value));
    unreliable_keys_.insert(field->key);
    return;
  }
  field->store(value);
  unreliable_keys_.erase(field->key);
  settings_[field->key] = setting;
}

std::string SettingsReader::renaming_hint() const {
  if (former_names_.empty()) return "";
  std::vector<std::string> renamed;
  for (const auto& [former, present] : former_names_) renamed.push_back(str(former, " is now ", present));
  return join(renamed, ", ") + "; former names are deprecated";
}

/// Returns the problem of a setting that no field accepts; "" for the header of a known section, and for keys of a
/// section that was already reported.
std::string SettingsReader::unknown(const Setting& setting) {
  std::vector<std::string> sections;
  for (const Field& field : fields_) {
    if (const std::string section(field.section());
        !section.empty() && (sections.empty() || sections.back() != section)) {
      sections.push_back(section);
    }
  }
  const bool is_header = setting.key.find('.') == std::string::npos;
  const std::string section(is_header ? setting.key : section_of(setting.key));
  const bool is_table = !is_header || std::holds_alternative<Value::Other>(setting.value.data);
  const bool is_known = std::find(sections.begin(), sections.end(), section) != sections.end();
  if (is_known && !is_header) return "unknown key" + suggest(setting.key);
  if (is_known) return is_table ? "" : str("is a section; write its keys below a line [", section, "]");
  if (!is_table) {
    const std::string suggestion = suggest(setting.key);
    return "every key belongs to a section" + (suggestion.empty() ? str(": ", join(sections, ", ")) : suggestion);
  }
  if (!unknown_sections_.insert(section).second) return "";
  const std::string nearest = nearest_name(section, sections);
  for (const Field& field : fields_) {
    if (field.section() == nearest) unreliable_keys_.insert(field.key);
  }
  return str("unknown section [", section, "]; ",
             nearest.empty() ? str("the sections are ", join(sections, ", ")) : str("did you mean [", nearest, "]?"));
}

void SettingsReader::add_conflict(const std::string& text, std::string_view default_location) {
  if (is_incomplete_) return;
  for (const std::string& key : unreliable_keys_) {
    if (mentions(text, name_of(key))) return;
  }
  const std::size_t key_end = text.find_first_of(":,");
  const auto it = settings_.find(text.substr(0, key_end));
  if (it == settings_.end()) {
    add_problem(default_location.empty() ? text : str(default_location, ": ", text));
  } else if (key_end != std::string::npos && text[key_end] == ':') {
    add_problem(str(it->second.location, ": ", shortened(it->second.spelling), text.substr(key_end)));
  } else {
    add_problem(str(it->second.location, ": ", text));
  }
}

void SettingsReader::finish() const {
  check_problems(problems_);
}

void check_problems(const std::vector<std::string>& problems) {
  if (problems.empty()) return;
  if (problems.size() == 1) fail(ExitCode::BadInput, problems[0]);
  fail(ExitCode::BadInput, problems.size(), " problems:\n  ", join(problems, "\n  "));
}

namespace {

using Position = std::pair<u32, u32>;  // line, column

Value to_value(const toml::node& node);

Value to_table(const toml::table& table) {
  Value::Table entries;
  for (const auto& [key, node] : table) entries.push_back({std::string(key.str()), to_value(node)});
  return {std::move(entries)};
}

Value to_value(const toml::node& node) {
  if (const auto* b = node.as_boolean()) return {b->get()};
  if (const auto* i = node.as_integer()) return {i->get()};
  if (const auto* d = node.as_floating_point()) return {d->get()};
  if (const auto* s = node.as_string()) return {s->get()};
  if (const auto* array = node.as_array()) {
    Value::List list;
    for (const toml::node& element : *array)
      list.push_back(element.is_table() ? to_table(*element.as_table()) : to_value(element));
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
      if (section.empty() && part.prefix.empty() && part.reader->accepts_tables(name)) {
        collect_tables(node, name, *part.reader);
        continue;
      }
      const Position at = position_of(key.source());
      const std::string full_name = section.empty() ? name : str(section, ".", name);
      located_.push_back({at, {full_name, to_value(node), location(at), part.prefix + full_name}, part.reader});
      if (section.empty() && node.is_table()) collect(*node.as_table(), full_name, part);
    }
  }

  /// Assigns the settings in the order of the text; tables are ordered by name. Headers precede their keys in both
  /// orders.
  void assign() {
    sort();
    for (const Located& located : located_) located.reader->assign(located.setting);
  }

 private:
  std::string location(Position at) const { return str(name_, ":", at.first, ":", at.second); }

  void sort() {
    std::stable_sort(located_.begin(), located_.end(),
                     [](const Located& a, const Located& b) { return a.position < b.position; });
  }

  /// Passes the settings of each table of the list `node` to `reader`.
  void collect_tables(const toml::node& node, const std::string& list, SettingsReader& reader) {
    const toml::array* tables = node.as_array();
    const auto is_table = [](const toml::node& element) { return element.is_table(); };
    if (tables == nullptr || !std::all_of(tables->begin(), tables->end(), is_table)) {
      const Position at = position_of(node.source());
      return reader.add_gap(str(location(at), ": ", list, ": is a list of tables; write each as [[", list, "]]"));
    }
    for (const toml::node& element : *tables) {
      Collector table(name_, table_reader_);
      table.collect(*element.as_table(), "", {&reader, list + "."});
      table.sort();
      TableSettings settings{.location = location(position_of(element.source())), .settings = {}};
      for (Located& located : table.located_) settings.settings.push_back(std::move(located.setting));
      reader.add_table(std::move(settings));
    }
  }

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
