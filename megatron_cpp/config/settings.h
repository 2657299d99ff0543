// Values from a configuration file or a command line on their way into the fields of structs. The field visitors of
// base/fields.h are turned into one list of Field, so that everything else here is ordinary, untemplated code.
#pragma once
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

namespace mcpp {

/// A value as it was given.
struct Value {
  using List = std::vector<Value>;
  /// Text of a command line; what it means depends on the type of its field.
  struct Raw {
    std::string text;
  };
  /// Something that no field takes, in words: "a table", "a date".
  struct Other {
    std::string what;
  };
  std::variant<bool, i64, double, std::string, List, Raw, Other> data;

  /// As a message shows it: 12, "abc", a list.
  std::string describe() const;
};

/// The one value that `text` is in TOML, or nothing.
std::vector<Value> toml_value(std::string_view text);

/// `text` as a TOML string, quoted and escaped.
std::string toml_string(std::string_view text);

struct FieldType {
  enum class Kind { Bool, Integer, Real, Text, Name };
  Kind kind = Kind::Text;
  bool is_list = false;
  std::vector<std::string> names;  ///< those a Name accepts
  /// "an integer", "a list of strings", "one of \"adam\", \"sgd\"".
  std::string describe() const;
};

/// One member of a configuration or option struct. It refers to the struct, which must outlive it.
struct Field {
  std::string key;  ///< "section.name", or "name" where there are no sections
  std::string help;
  FieldType type;
  Constraint constraint;
  std::function<void(const Value&)> store;  ///< takes what convert() accepted
  std::function<std::string()> print;       ///< the member's value, in TOML

  std::string_view section() const;  ///< "" where there are none
  std::string_view name() const;     ///< without the section
  /// Turns `value` into the exact type of the field; returns what is wrong with it, or "".
  std::string convert(Value& value) const;
};

/// Setting::place of the arguments of a command.
inline constexpr const char* kCommandLine = "command line";

/// One value given for one key.
struct Setting {
  std::string key;
  Value value;
  std::string place;    ///< "run.toml:3:1" or "command line"
  std::string spelled;  ///< the key as the user wrote it: "model.num_layers", "--model.num_layers=x"
};

/// Stores settings into fields and collects every problem on the way, to report them all at once.
class SettingsReader {
 public:
  explicit SettingsReader(std::vector<Field> fields) : fields_(std::move(fields)) {}

  const std::vector<Field>& fields() const { return fields_; }
  /// Returns the field named `key`, or formerly named so; null when there is none.
  const Field* find(std::string_view key) const;
  /// "; did you mean ...?", "; " and why no key is needed, or "", for a key that is no field's. The key meant then
  /// counts as doubtful.
  std::string suggest(std::string_view key, std::string_view prefix = "");

  /// A later setting of the same key wins, except that no place may give a key twice, nor one file or command line a
  /// key under both its present and its former name.
  void assign(const Setting& setting);
  /// Notes a rule between fields, worded "section.name: what is wrong", with the place of that key's setting.
  /// Dropped when it speaks of a key whose own value was refused: it would only confuse.
  void add_conflict(const std::string& text, std::string_view default_place);
  void add_problem(std::string text) { problems_.push_back(std::move(text)); }
  /// A problem that leaves the settings incomplete, so that rules between fields cannot be judged any more.
  void add_gap(std::string text) {
    add_problem(std::move(text));
    is_incomplete_ = true;
  }
  bool is_incomplete() const { return is_incomplete_; }
  bool is_from_command_line(const std::string& key) const {
    const auto found = settings_.find(key);
    return found != settings_.end() && found->second.place == kCommandLine;
  }
  bool was_set(std::string_view key) const { return settings_.count(std::string(key)) > 0; }
  /// Whether a setting of this key was refused, or a misspelt key probably meant it.
  bool is_doubtful(const std::string& key) const { return doubtful_.count(key) > 0; }
  const std::vector<std::string>& problems() const { return problems_; }
  /// Returns one line that lists the former names in use with their present ones; empty when there are none.
  std::string renaming_hint() const;
  /// Throws one BadInput error with all problems, if there is any.
  void finish() const;

 private:
  std::string unknown(const Setting& setting);

  std::vector<Field> fields_;
  std::map<std::string, Setting> settings_;  // by the field's key; Setting::key is the name that was given
  std::set<std::string> doubtful_;           // keys whose value was refused, or that a misspelling probably meant
  std::set<std::string> unknown_sections_;   // reported once each
  std::map<std::string, std::string> former_names_;  // in use, with the present ones
  std::vector<std::string> problems_;
  bool is_incomplete_ = false;
};

/// Throws one BadInput error with all of them, if there is any.
void check_problems(const std::vector<std::string>& problems);

template <class T>
FieldType field_type() {
  using Kind = FieldType::Kind;
  if constexpr (is_vector<T>::value) {
    FieldType type = field_type<typename T::value_type>();
    type.is_list = true;
    return type;
  } else if constexpr (std::is_enum_v<T>) {
    return {Kind::Name, false, {EnumNames<T>::value.begin(), EnumNames<T>::value.end()}};
  } else if constexpr (std::is_same_v<T, bool>) {
    return {Kind::Bool, false, {}};
  } else if constexpr (std::is_same_v<T, i64>) {
    return {Kind::Integer, false, {}};
  } else if constexpr (std::is_same_v<T, double>) {
    return {Kind::Real, false, {}};
  } else {
    static_assert(std::is_same_v<T, std::string>, "a field is a bool, i64, double, string, enum or a list of those");
    return {Kind::Text, false, {}};
  }
}

/// A converted value into the member it was converted for.
template <class T>
void store_value(const Value& value, T& member) {
  if constexpr (is_vector<T>::value) {
    member.clear();
    for (const Value& element : std::get<Value::List>(value.data)) store_value(element, member.emplace_back());
  } else if constexpr (std::is_enum_v<T>) {
    member = static_cast<T>(std::get<i64>(value.data));
  } else {
    member = std::get<T>(value.data);
  }
}

/// The member's value in TOML.
template <class T>
std::string toml_text(const T& member) {
  if constexpr (is_vector<T>::value) {
    std::string text;
    for (const auto& element : member) text.append(text.empty() ? "" : ", ").append(toml_text(element));
    return "[" + text + "]";
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

/// Appends the fields of `object`, which the list refers to from then on.
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

}  // namespace mcpp
