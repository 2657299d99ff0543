// Functions, filters, tests and methods that templates can use.
#pragma once
#include <optional>
#include <string>
#include <string_view>

#include "data/jinja/value.h"

namespace mcpp::jinja {

/// Max elements of range() and of a repeated sequence.
inline constexpr i64 kMaxRange = 100'000;

/// Applies `value | name(arguments)`. Throws BadInput for an unknown filter and for unsuitable arguments.
Value apply_filter(const std::string& name, const Value& value, const Arguments& arguments);

/// Returns `value is name(arguments)`. Throws BadInput for an unknown test and for unsuitable arguments.
bool apply_test(const std::string& name, const Value& value, const Arguments& arguments);

/// Calls a method of a text, list or dictionary. Returns std::nullopt if there is no such method.
std::optional<Value> call_method(const Value& object, const std::string& name, const Arguments& arguments);

/// Owns the namespaces that a template creates. Clears their members at the end: namespaces that contain each other
/// would never be freed, and a long chain of them would be freed recursively.
class Namespaces {
 public:
  Namespaces() = default;
  Namespaces(const Namespaces&) = delete;
  Namespaces& operator=(const Namespaces&) = delete;
  ~Namespaces();

  Value make(Dict members);

 private:
  List made_;
};

/// Returns the functions range, namespace, dict and raise_exception. `namespaces` must outlive them.
Dict global_functions(Namespaces& namespaces);

/// Returns object[key]: an element, a member or a character; an undefined value if there is none.
Value subscript(const Value& object, const Value& key, WorkBudget& budget);
/// Returns object[begin:end:step]; bounds may be None.
Value slice(const Value& object, const Value& begin, const Value& end, const Value& step, WorkBudget& budget);
/// Returns the member of a dictionary; an undefined value if there is none. Throws BadInput if `object` is undefined.
Value attribute(const Value& object, const std::string& name, WorkBudget& budget);

/// Returns a op b, where `op` is one of + - * / // % ** ~.
Value arithmetic(const std::string& op, const Value& a, const Value& b, WorkBudget& budget);

}  // namespace mcpp::jinja
