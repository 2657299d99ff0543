// Settings from a configuration file or command line, and their conversion into the fields of structs. The field
// visitors of base/fields.h are converted to a list of Field, so that everything else here is untemplated code.
#pragma once
#include <algorithm>
#include <functional>
#include <map>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/fields.h"
#include "base/number_format.h"
#include "base/strings.h"

namespace mcpp {

/// Value of a setting as specified by the user.
struct Value {
  using List = std::vector<Value>;
  /// Text of a command line, whose meaning depends on the type of its field.
  struct Raw {
    std::string text;
  };
  /// Description of a value that no field accepts: "a table", "a date".
  struct Other {
    std::string what;
  };
  struct Entry;
  using Table = std::vector<Entry>;  ///< table in a list, in the order of its keys
  std::variant<bool, i64, double, std::string, List, Table, Raw, Other> data;

  /// Returns the value as shown in messages: 12, "abc", a list.
  std::string describe() const;
};

struct Value::Entry {
  std::string key;
  Value value;
};

/// Parses `text` as a single TOML value. Returns an empty list if it is not one.
std::vector<Value> toml_value(std::string_view text);

/// Returns `text` as a TOML string, quoted and escaped.
std::string toml_string(std::string_view text);

struct FieldType {
  enum class Kind { Bool, Integer, Real, Text, Name, Table };
  Kind kind = Kind::Text;
  bool is_list = false;
  std::vector<std::string> names = {};  ///< allowed values of a Name
  bool is_one_or_list = false;          ///< a list that must not be empty
  /// Converts the values of a Table to the types of its keys. Returns the problem, or "".
  std::function<std::string(Value::Table&)> convert_table = {};
  /// Returns the type in words: "an integer", "a list of strings", "one of \"adam\", \"sgd\"".
  std::string describe() const;
};

/// Member of a configuration or option struct. Refers to the struct, which must outlive it.
struct Field {
  std::string key;  ///< "section.name", or "name" without sections
  std::string help;
  FieldType type;
  Constraint constraint;
  std::function<void(const Value&)> store;  ///< stores a value that convert() accepted
  std::function<std::string()> print;       ///< returns the member's value in TOML

  std::string_view section() const;  ///< "" without sections
  std::string_view name() const;     ///< name without the section
  /// Converts `value` to the exact type of the field. Returns the problem, or "".
  std::string convert(Value& value) const;
};

/// Value of Setting::location for the arguments of a command.
inline constexpr const char* kCommandLine = "command line";

/// Value set for a key.
struct Setting {
  std::string key;
  Value value;
  std::string location;  ///< "run.toml:3:1" or "command line"
  std::string spelling;  ///< the key as the user wrote it: "model.num_layers", "--model.num_layers=x"
};

/// Settings of one table of a list of tables, such as [[stage]].
struct TableSettings {
  std::string location;           ///< location of its header
  std::vector<Setting> settings;  ///< in the order of the text; keys without the name of the list
};

/// Stores settings into fields and collects every problem, to report all together.
class SettingsReader {
 public:
  explicit SettingsReader(std::vector<Field> fields) : fields_(std::move(fields)) {}

  const std::vector<Field>& fields() const { return fields_; }
  /// Returns the field with the present or former name `key`, or null.
  const Field* find(std::string_view key) const;
  /// Returns a suffix for an unknown key: "; did you mean ...?", a reason why no key is needed, or "". The suggested
  /// key then counts as doubtful.
  std::string suggest(std::string_view key, std::string_view prefix = "");

  /// Stores a setting. A later setting of the same key takes precedence, but no location may set a key twice, and no
  /// file or command line may use both the current and the former name of a key.
  void assign(const Setting& setting);
  /// Reports a violated rule between fields, worded "section.name: problem", with the location of that key's setting.
  /// Drops problems of a key whose value was rejected, since they would be misleading.
  void add_conflict(const std::string& text, std::string_view default_location);
  /// Keeps the settings of tables [[name]], which are not checked, instead of reporting an unknown key.
  void accept_tables(std::string name) { table_name_ = std::move(name); }
  bool accepts_tables(std::string_view name) const { return !table_name_.empty() && name == table_name_; }
  void add_table(TableSettings table) { tables_.push_back(std::move(table)); }
  const std::vector<TableSettings>& tables() const { return tables_; }
  void add_problem(std::string text) { problems_.push_back(std::move(text)); }
  /// Reports a problem that leaves the settings incomplete, so that rules between fields can no longer be checked.
  void add_gap(std::string text) {
    add_problem(std::move(text));
    is_incomplete_ = true;
  }
  bool is_incomplete() const { return is_incomplete_; }
  bool is_from_command_line(const std::string& key) const {
    const auto it = settings_.find(key);
    return it != settings_.end() && it->second.location == kCommandLine;
  }
  bool was_set(std::string_view key) const { return settings_.count(std::string(key)) > 0; }
  /// Returns true if a setting of this key was rejected, or if a misspelled key is probably this one.
  bool is_doubtful(const std::string& key) const { return unreliable_keys_.count(key) > 0; }
  const std::vector<std::string>& problems() const { return problems_; }
  /// Returns one line that lists the former names in use with their current names; empty if there are none.
  std::string renaming_hint() const;
  /// Throws one BadInput error with all problems, if there are any.
  void finish() const;

 private:
  std::string unknown(const Setting& setting);

  std::vector<Field> fields_;
  std::map<std::string, Setting> settings_;  // by the field's key; Setting::key is the given name
  std::set<std::string> unreliable_keys_;    // keys with a rejected value, and keys that a misspelled key resembles
  std::set<std::string> unknown_sections_;   // each is reported once
  std::map<std::string, std::string> former_names_;  // former names in use, with their current names
  std::string table_name_;                           // name of the accepted tables; empty = none
  std::vector<TableSettings> tables_;
  std::vector<std::string> problems_;
  bool is_incomplete_ = false;
};

/// Throws one BadInput error with all problems, if there are any.
void check_problems(const std::vector<std::string>& problems);

/// Converts the values of a table to the types of the fields, which have no section. Returns the problem, or "".
std::string convert_table(const std::vector<Field>& fields, Value::Table& table);

/// Type with a list of fields, which is a table in TOML.
template <class T>
concept HasFields = requires {
  &T::template fields<T, int>;
};

template <class T>
void list_fields(T& object, std::string_view section, std::vector<Field>& fields);

template <class T>
FieldType field_type() {
  using Kind = FieldType::Kind;
  if constexpr (is_optional<T>::value) {
    return field_type<typename T::value_type>();
  } else if constexpr (is_vector<T>::value || is_one_or_list<T>::value) {
    FieldType type = field_type<typename T::value_type>();
    type.is_list = true;
    type.is_one_or_list = is_one_or_list<T>::value;
    return type;
  } else if constexpr (std::is_enum_v<T>) {
    return {Kind::Name, false, {EnumNames<T>::value.begin(), EnumNames<T>::value.end()}};
  } else if constexpr (std::is_same_v<T, bool>) {
    return {Kind::Bool, false, {}};
  } else if constexpr (std::is_same_v<T, i64>) {
    return {Kind::Integer, false, {}};
  } else if constexpr (std::is_same_v<T, double>) {
    return {Kind::Real, false, {}};
  } else if constexpr (HasFields<T>) {
    return {.kind = Kind::Table, .convert_table = [](Value::Table& table) {
              T defaults;
              std::vector<Field> fields;
              list_fields(defaults, "", fields);
              return convert_table(fields, table);
            }};
  } else {
    static_assert(std::is_same_v<T, std::string>, "a field is a bool, i64, double, string, enum or a list of those");
    return {Kind::Text, false, {}};
  }
}

/// Stores a converted value in its member.
template <class T>
void store_value(const Value& value, T& member) {
  if constexpr (is_optional<T>::value) {
    store_value(value, member.emplace());
  } else if constexpr (is_one_or_list<T>::value) {
    std::vector<typename T::value_type> values;
    store_value(value, values);
    member = T(std::move(values));
  } else if constexpr (is_vector<T>::value) {
    member.clear();
    for (const Value& element : std::get<Value::List>(value.data)) store_value(element, member.emplace_back());
  } else if constexpr (HasFields<T>) {
    member = T();
    std::vector<Field> fields;
    list_fields(member, "", fields);
    for (const Value::Entry& entry : std::get<Value::Table>(value.data))
      std::ranges::find(fields, entry.key, &Field::key)->store(entry.value);
  } else if constexpr (std::is_enum_v<T>) {
    member = static_cast<T>(std::get<i64>(value.data));
  } else {
    member = std::get<T>(value.data);
  }
}

/// Returns the member's value in TOML, or "" if it is unset. A table has only the keys that differ from their defaults.
template <class T>
std::string toml_text(const T& member) {
  if constexpr (is_optional<T>::value) {
    return member ? toml_text(*member) : "";
  } else if constexpr (is_one_or_list<T>::value) {
    return member.is_list() ? toml_text(member.values()) : toml_text(member.first());
  } else if constexpr (is_vector<T>::value) {
    std::string text;
    for (const auto& element : member) text.append(text.empty() ? "" : ", ").append(toml_text(element));
    return "[" + text + "]";
  } else if constexpr (HasFields<T>) {
    T copy = member, defaults;
    std::vector<Field> fields, default_fields;
    list_fields(copy, "", fields);
    list_fields(defaults, "", default_fields);
    std::string text;
    for (std::size_t i = 0; i < fields.size(); ++i) {
      const std::string value = fields[i].print();
      if (value != default_fields[i].print()) text += str(text.empty() ? "" : ", ", fields[i].key, " = ", value);
    }
    return "{" + text + "}";
  } else if constexpr (std::is_enum_v<T>) {
    return toml_string(enum_name(member));
  } else if constexpr (std::is_same_v<T, bool>) {
    return member ? "true" : "false";
  } else if constexpr (std::is_same_v<T, double>) {
    return shortest(member);
  } else if constexpr (std::is_same_v<T, i64>) {
    return std::to_string(member);
  } else {
    return toml_string(member);
  }
}

/// Appends the fields of `object`, which must outlive them.
template <class T>
void list_fields(T& object, std::string_view section, std::vector<Field>& fields) {
  const auto visit = [&]<class M>(std::string_view name, M& member, std::string_view help, Constraint constraint = {}) {
    std::string key = section.empty() ? std::string(name) : std::string(section).append(".").append(name);
    fields.push_back({.key = std::move(key),
                      .help = std::string(help),
                      .type = field_type<M>(),
                      .constraint = constraint,
                      .store = [&member](const Value& value) { store_value(value, member); },
                      .print = [&member] { return toml_text(member); }});
  };
  T::fields(object, visit);
}

// Conversion of TOML text to settings, by toml++.

/// Passes the keys of all sections of `toml` to `reader`, in the order of the text, with "name:line:column" as
/// location. Text that is not TOML, or sets a key twice, is reported as a single problem, because the rest of such a
/// text cannot be trusted.
void read_toml(std::string_view toml, const std::string& name, SettingsReader& reader);

/// Callback that returns the reader for the content of table `table`, as if the table were a separate file, or null for
/// an ordinary section.
using TableReader = std::function<SettingsReader*(std::string_view table)>;
/// Overload for text that embeds other texts, each in a separate table. Keys outside of these tables are passed to
/// `rest`.
void read_toml(std::string_view toml, const std::string& name, SettingsReader& rest, const TableReader& table_reader);

}  // namespace mcpp
