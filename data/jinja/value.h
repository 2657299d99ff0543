// Values of templates in the language Jinja, with the semantics of Python.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "base/json.h"
#include "base/types.h"

namespace mcpp::jinja {

/// Max bytes of a text that a template produces.
inline constexpr std::size_t kMaxTextBytes = std::size_t{64} << 20;
/// Throws BadInput, with the name of the function that produces it, if a text of this size is too long.
void check_text_size(std::size_t bytes, std::string_view function);

class Value;
using List = std::vector<Value>;

/// Limits the work of a rendering, so that every template ends. A unit is worth about a nanosecond: copying a byte
/// costs one.
class WorkBudget {
 public:
  static constexpr i64 kElement = 32;      ///< cost of copying an element of a list or a member of a dictionary
  static constexpr i64 kExpression = 64;   ///< cost of evaluating a name or an operator
  static constexpr i64 kIteration = 1024;  ///< cost of an iteration of a loop

  explicit WorkBudget(i64 units) : left_(units) {}
  /// Throws BadInput if fewer units are left.
  void spend(i64 units);
  /// Spends `units` for each of `count` parts.
  void spend(std::size_t count, i64 units) { spend(static_cast<i64>(count) * units); }

 private:
  i64 left_;
};

/// Value that does not exist; `name` describes it in messages. It is printed as an empty text.
struct Undefined {
  std::string name;
};

/// Arguments of a call, and the budget that pays for it.
struct Arguments {
  explicit Arguments(WorkBudget& paying);

  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;
  WorkBudget& budget;

  /// Returns the argument at `index`, or the one called `name`; nullptr if it was not passed.
  const Value* find(std::size_t index, std::string_view name) const;
  /// Returns the argument like find(). Throws BadInput if it was not passed.
  const Value& at(std::size_t index, std::string_view name) const;
  /// Throws BadInput if there are more than `count` arguments.
  void check_at_most(std::size_t count, std::string_view function) const;
};

using Function = std::function<Value(const Arguments&)>;

/// Members in insertion order.
struct Dict {
  std::vector<std::pair<std::string, Value>> members;
  bool is_namespace = false;  ///< made by namespace(): its members can be set

  const Value* find(std::string_view key) const;
  void set(std::string_view key, Value value);
};

/// Immutable value, except for namespaces. Cheap to copy. Lists and dictionaries may be nested up to kMaxDepth levels
/// and contain values and bytes of texts up to kMaxSize, where a part counts as often as it occurs; constructors throw
/// BadInput for others. Functions that visit all parts, such as repr(), therefore end, although parts may be shared.
class Value {
 public:
  static constexpr i64 kMaxDepth = 100;
  static constexpr i64 kMaxSize = i64{64} << 20;

  Value() : data_(nullptr) {}
  Value(Undefined undefined) : data_(std::move(undefined)) {}  // NOLINT(google-explicit-constructor)
  explicit Value(bool value) : data_(value) {}
  explicit Value(i64 value) : data_(value) {}
  explicit Value(double value) : data_(value) {}
  Value(std::string text);                               // NOLINT(google-explicit-constructor)
  Value(const char* text) : Value(std::string(text)) {}  // NOLINT(google-explicit-constructor)
  Value(List items);                                     // NOLINT(google-explicit-constructor)
  Value(Dict members);                                   // NOLINT(google-explicit-constructor)
  explicit Value(Function function);
  /// Returns a list that is printed as a tuple.
  static Value tuple(List items);
  /// Converts JSON.
  static Value of_json(const OrderedJson& json, i64 depth = 0);

  bool is_undefined() const { return std::holds_alternative<Undefined>(data_); }
  bool is_none() const { return std::holds_alternative<std::nullptr_t>(data_); }
  bool is_bool() const { return std::holds_alternative<bool>(data_); }
  bool is_integer() const { return std::holds_alternative<i64>(data_); }
  bool is_float() const { return std::holds_alternative<double>(data_); }
  bool is_number() const { return is_bool() || is_integer() || is_float(); }
  bool is_text() const { return std::holds_alternative<Text>(data_); }
  bool is_list() const { return std::holds_alternative<Items>(data_); }
  bool is_dict() const { return std::holds_alternative<Members>(data_); }
  bool is_function() const { return std::holds_alternative<Callable>(data_); }

  // Throw BadInput for a value of a different type.
  i64 integer() const;  ///< also of true and false
  double number() const;
  const std::string& text() const;
  const List& list() const;
  Dict& dict() const;
  const Function& function() const;

  bool is_true() const;
  /// Returns the text that Python's str() returns; "" if undefined.
  std::string str() const;
  /// Returns the text that Python's repr() returns.
  std::string repr() const;
  /// Returns the name of the type in Python.
  std::string type_name() const;
  /// Returns the elements of a list, the keys of a dictionary or the characters of a text; nothing if undefined. Throws
  /// BadInput for other values.
  List elements(WorkBudget& budget) const;
  /// Returns the number of elements().
  i64 length() const;
  /// Returns the number of values and bytes of texts inside, where a part counts as often as it occurs.
  i64 size() const { return size_; }

 private:
  using Text = std::shared_ptr<const std::string>;
  using Items = std::shared_ptr<const List>;
  using Members = std::shared_ptr<Dict>;
  using Callable = std::shared_ptr<const Function>;

  /// Includes a part in depth_ and size_.
  void count_part(const Value& part);
  /// Throws BadInput if this value is too deep or too large.
  void check_bounds(std::string_view kind) const;
  /// Appends repr().
  void append_repr(std::string& text) const;
  /// Throws BadInput, which reports that this value is not `wanted`.
  [[noreturn]] void fail_type(std::string_view wanted) const;

  std::variant<Undefined, std::nullptr_t, bool, i64, double, Text, Items, Members, Callable> data_;
  i64 depth_ = 0;  // levels of lists and dictionaries
  i64 size_ = 1;   // values and bytes of texts inside, including this value
  bool is_tuple_ = false;
};

bool operator==(const Value& a, const Value& b);
/// Returns true if a < b. Throws BadInput unless both are numbers, texts or lists.
bool is_less(const Value& a, const Value& b);
/// Returns true if `value` is an element, key or part of `container`.
bool contains(const Value& container, const Value& value, WorkBudget& budget);
/// Returns the JSON of a value as Python's json.dumps(ensure_ascii=False) writes it. `indent` < 0 writes one line.
/// Throws BadInput for functions and namespaces.
std::string to_json(const Value& value, i64 indent, bool sorts_keys);

/// Returns the position of the first `part` in `text`, npos if there is none. Takes time proportional to both lengths,
/// unlike std::string_view::find().
std::size_t find_part(std::string_view text, std::string_view part);
/// Returns the characters of valid UTF-8.
std::vector<std::string_view> characters(std::string_view text);

}  // namespace mcpp::jinja
