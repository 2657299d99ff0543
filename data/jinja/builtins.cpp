#include "data/jinja/builtins.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/check.h"
#include "data/jinja/text_methods.h"

namespace mcpp::jinja {
namespace {

/// Returns the Python index of a sequence of `size` elements as an index from 0; std::nullopt if it is outside.
std::optional<std::size_t> resolve_index(i64 index, i64 size) {
  if (index < 0) index += size;
  return index >= 0 && index < size ? std::optional(static_cast<std::size_t>(index)) : std::nullopt;
}

std::string checked_text(std::string text) {
  check_input(text.size() <= kMaxTextBytes, "a text becomes longer than ", kMaxTextBytes, " bytes");
  return text;
}

Value repeat(const Value& sequence, i64 count, WorkBudget& budget) {
  const i64 times = std::max<i64>(count, 0);
  check_input(times <= 1 || times <= kMaxRange / std::max<i64>(sequence.length(), 1), "a sequence becomes longer than ",
              kMaxRange, " elements");
  budget.spend(sequence.is_text() ? sequence.size() : times * sequence.length() * WorkBudget::kElement);
  std::string text;
  List items;
  for (i64 i = 0; i < times; ++i) {
    if (sequence.is_text())
      text += sequence.text();
    else
      items.insert(items.end(), sequence.list().begin(), sequence.list().end());
  }
  return sequence.is_text() ? Value(checked_text(std::move(text))) : Value(std::move(items));
}

Value float_arithmetic(const std::string& op, double a, double b) {
  if (op == "+") return Value(a + b);
  if (op == "-") return Value(a - b);
  if (op == "*") return Value(a * b);
  if (op == "**") return Value(std::pow(a, b));
  check_input(b != 0, "division by zero");
  if (op == "/") return Value(a / b);
  const double quotient = std::floor(a / b);
  return Value(op == "//" ? quotient : a - quotient * b);
}

Value integer_arithmetic(const std::string& op, i64 a, i64 b) {
  i64 result = 0;
  bool overflows = false;
  if (op == "/" || (op == "**" && b < 0)) return float_arithmetic(op, static_cast<double>(a), static_cast<double>(b));
  if (op == "+") overflows = __builtin_add_overflow(a, b, &result);
  if (op == "-") overflows = __builtin_sub_overflow(a, b, &result);
  if (op == "*") overflows = __builtin_mul_overflow(a, b, &result);
  if (op == "**") {
    result = 1;
    for (i64 i = 0; i < b && !overflows && i < 64; ++i) overflows = __builtin_mul_overflow(result, a, &result);
    overflows = overflows || (b > 64 && a != 0 && a != 1 && a != -1);
    if (a == -1) result = b % 2 == 0 ? 1 : -1;
  }
  if (op == "//" || op == "%") {
    check_input(b != 0, "division by zero");
    if (b == -1) return op == "%" ? Value(i64{0}) : integer_arithmetic("-", 0, a);
    const i64 rest = a % b;
    const bool rounds_down = rest != 0 && (rest < 0) != (b < 0);
    result = op == "//" ? a / b - (rounds_down ? 1 : 0) : rest + (rounds_down ? b : 0);
  }
  check_input(!overflows, "the integer ", a, " ", op, " ", b, " is too large");
  return Value(result);
}

Value range_function(const Arguments& arguments) {
  arguments.check_at_most(3, "range");
  const i64 first = arguments.at(0, "start").integer();
  const bool has_end = arguments.positional.size() > 1;
  const i64 begin = has_end ? first : 0, end = has_end ? arguments.positional[1].integer() : first;
  const i64 step = arguments.positional.size() > 2 ? arguments.positional[2].integer() : 1;
  check_input(step != 0, "range: the step is 0");
  List values;
  for (i64 i = begin; step > 0 ? i < end : i > end;) {
    check_input(std::ssize(values) < kMaxRange, "range: has more than ", kMaxRange, " elements");
    arguments.budget.spend(WorkBudget::kElement);
    values.emplace_back(i);
    if (__builtin_add_overflow(i, step, &i)) break;
  }
  return values;
}

/// Returns a dictionary with the named arguments, after the members of a dictionary that may come first.
Dict dict_of(const Arguments& arguments) {
  Dict dict;
  if (const Value* base = arguments.positional.empty() ? nullptr : arguments.positional.data()) {
    arguments.budget.spend(base->dict().members.size(), WorkBudget::kElement);
    dict.members = base->dict().members;
  }
  for (const auto& [name, value] : arguments.named) {
    arguments.budget.spend(dict.members.size(), 2);
    dict.set(name, value);
  }
  return dict;
}

Value raise_function(const Arguments& arguments) {
  fail(ExitCode::BadInput, "the template rejects the conversation: ", arguments.at(0, "message").str());
}

std::optional<Value> call_dict_method(const Dict& dict, const std::string& name, const Arguments& arguments) {
  List result;
  arguments.budget.spend(dict.members.size(), name == "get" ? 2 : WorkBudget::kElement);
  if (name == "get") {
    const Value* fallback = arguments.find(1, "default");
    const Value& key = arguments.at(0, "key");
    const Value* found = key.is_text() ? dict.find(key.text()) : nullptr;
    return found ? *found : fallback ? *fallback : Value();
  }
  if (name == "items") {
    for (const auto& [key, value] : dict.members) result.push_back(Value::tuple({key, value}));
    return result;
  }
  if (name == "keys") {
    for (const auto& [key, value] : dict.members) result.emplace_back(key);
    return result;
  }
  if (name == "values") {
    for (const auto& [key, value] : dict.members) result.push_back(value);
    return result;
  }
  if (name == "copy") return Value(dict);
  return std::nullopt;
}

std::optional<Value> call_list_method(const List& list, const std::string& name, const Arguments& arguments) {
  if (name == "count") return Value(static_cast<i64>(std::ranges::count(list, arguments.at(0, "value"))));
  if (name == "index") {
    const auto it = std::ranges::find(list, arguments.at(0, "value"));
    if (it == list.end()) fail(ExitCode::BadInput, "index: ", arguments.at(0, "value").repr(), " is not in the list");
    return Value(static_cast<i64>(it - list.begin()));
  }
  check_input(name != "append" && name != "pop" && name != "insert" && name != "extend", "the method ", name,
              " is not allowed: lists cannot be changed; use + to make a new one");
  return std::nullopt;
}

}  // namespace

std::optional<Value> call_method(const Value& object, const std::string& name, const Arguments& arguments) {
  if (object.is_text() || object.is_list()) {
    arguments.budget.spend(object.size());
    for (const Value& argument : arguments.positional) arguments.budget.spend(argument.size());
    for (const auto& [key, argument] : arguments.named) arguments.budget.spend(argument.size());
  }
  if (object.is_text()) return call_text_method(object.text(), name, arguments);
  if (object.is_list()) return call_list_method(object.list(), name, arguments);
  if (object.is_dict() && !object.dict().is_namespace) return call_dict_method(object.dict(), name, arguments);
  return std::nullopt;
}

Namespaces::~Namespaces() {
  for (const Value& made : made_) made.dict().members.clear();
}

Value Namespaces::make(Dict members) {
  members.is_namespace = true;
  return made_.emplace_back(std::move(members));
}

Dict global_functions(Namespaces& namespaces) {
  Dict globals;
  globals.set("range", Value(Function(range_function)));
  globals.set(
      "namespace",
      Value(Function([&namespaces](const Arguments& arguments) { return namespaces.make(dict_of(arguments)); })));
  globals.set("dict", Value(Function([](const Arguments& arguments) { return Value(dict_of(arguments)); })));
  globals.set("raise_exception", Value(Function(raise_function)));
  return globals;
}

Value subscript(const Value& object, const Value& key, WorkBudget& budget) {
  const auto missing = [&] {
    budget.spend(key.size());
    return Undefined{str("the element ", key.repr(), " of a ", object.type_name())};
  };
  if (object.is_dict()) {
    budget.spend(object.dict().members.size(), 2);
    const Value* found = key.is_text() ? object.dict().find(key.text()) : nullptr;
    return found ? *found : Value(missing());
  }
  if (object.is_list() && key.is_number()) {
    const auto index = resolve_index(key.integer(), std::ssize(object.list()));
    return index ? object.list()[*index] : Value(missing());
  }
  if (object.is_text() && key.is_number()) {
    budget.spend(object.text().size(), 4);
    const std::vector<std::string_view> all = characters(object.text());
    const auto index = resolve_index(key.integer(), std::ssize(all));
    return index ? Value(std::string(all[*index])) : Value(missing());
  }
  if (object.is_undefined()) object.text();  // throws that it is undefined
  return missing();
}

Value slice(const Value& object, const Value& begin, const Value& end, const Value& step, WorkBudget& budget) {
  if (!object.is_list()) budget.spend(object.text().size(), 4);
  const auto letters = object.is_list() ? std::vector<std::string_view>() : characters(object.text());
  const i64 size = object.is_list() ? std::ssize(object.list()) : std::ssize(letters);
  const i64 by = step.is_none() ? 1 : step.integer();
  check_input(by != 0, "the step of a slice is 0");
  const auto bound = [&](const Value& value, i64 fallback) {
    if (value.is_none()) return fallback;
    const i64 given = value.integer(), index = given < 0 ? given + size : given;
    return by > 0 ? std::clamp<i64>(index, 0, size) : std::clamp<i64>(index, -1, size - 1);
  };
  const i64 from = bound(begin, by > 0 ? 0 : size - 1), to = bound(end, by > 0 ? size : -1);
  const i64 limited = std::clamp<i64>(by, -size - 1, size + 1);
  List result;
  std::string text;
  for (i64 i = from; by > 0 ? i < to : i > to; i += limited) {
    const auto index = static_cast<std::size_t>(i);
    if (!object.is_list()) {
      text += letters[index];
      continue;
    }
    budget.spend(WorkBudget::kElement);
    result.push_back(object.list()[index]);
  }
  return object.is_list() ? Value(std::move(result)) : Value(std::move(text));
}

Value attribute(const Value& object, const std::string& name, WorkBudget& budget) {
  if (object.is_undefined()) object.text();  // throws that it is undefined
  if (object.is_dict()) budget.spend(object.dict().members.size(), 2);
  const Value* found = object.is_dict() ? object.dict().find(name) : nullptr;
  return found ? *found : Value(Undefined{str("'", name, "' of a ", object.type_name())});
}

Value arithmetic(const std::string& op, const Value& a, const Value& b, WorkBudget& budget) {
  if (op == "~" || (op == "+" && a.is_text() && b.is_text())) {
    budget.spend(a.size() + b.size());
    return checked_text(a.str() + b.str());
  }
  if (op == "+" && a.is_list() && b.is_list()) {
    budget.spend(a.list().size() + b.list().size(), WorkBudget::kElement);
    List joined = a.list();
    joined.insert(joined.end(), b.list().begin(), b.list().end());
    check_input(std::ssize(joined) <= 10 * kMaxRange, "a list has more than ", 10 * kMaxRange, " elements");
    return joined;
  }
  if (op == "*" && (a.is_text() || a.is_list()) && b.is_integer()) return repeat(a, b.integer(), budget);
  if (op == "*" && (b.is_text() || b.is_list()) && a.is_integer()) return repeat(b, a.integer(), budget);
  check_input(!(op == "%" && a.is_text()), "formatting with % is not supported");
  if (a.is_undefined()) a.text();  // throws that it is undefined
  if (b.is_undefined()) b.text();
  check_input(a.is_number() && b.is_number(), "unsupported operands of ", op, ": ", a.type_name(), " and ",
              b.type_name());
  if (a.is_float() || b.is_float()) return float_arithmetic(op, a.number(), b.number());
  return integer_arithmetic(op, a.integer(), b.integer());
}

}  // namespace mcpp::jinja
