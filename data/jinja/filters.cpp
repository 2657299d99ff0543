#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "base/check.h"
#include "base/strings.h"
#include "data/jinja/builtins.h"
#include "data/jinja/text_methods.h"

namespace mcpp::jinja {
namespace {

using Filter = Value (*)(const Value& value, const Arguments& arguments);
using Test = bool (*)(const Value& value, const Arguments& arguments);

bool flag(const Arguments& arguments, std::size_t index, std::string_view name, bool fallback) {
  const Value* value = arguments.find(index, name);
  return value ? value->is_true() : fallback;
}

/// Returns the member of `item` that the dotted path names.
Value member(const Value& item, const std::string& path, WorkBudget& budget) {
  Value value = item;
  for (const std::string& name : split(path, '.')) {
    const auto index = parse_number<i64>(name);
    budget.spend(WorkBudget::kExpression);
    value = index ? subscript(value, Value(*index), budget) : attribute(value, name, budget);
  }
  return value;
}

/// Returns the arguments without the first `count`.
Arguments after(const Arguments& arguments, std::size_t count) {
  Arguments rest = arguments;
  rest.positional.erase(rest.positional.begin(),
                        rest.positional.begin() + static_cast<std::ptrdiff_t>(std::min(count, rest.positional.size())));
  return rest;
}

/// Implements select, reject, selectattr and rejectattr.
Value select(const Value& value, const Arguments& arguments, bool by_attribute, bool wanted) {
  List result;
  const std::size_t used = by_attribute ? 1 : 0;
  for (const Value& item : value.elements(arguments.budget)) {
    arguments.budget.spend(2 * WorkBudget::kExpression);
    const Value tested = by_attribute ? member(item, arguments.at(0, "attribute").text(), arguments.budget) : item;
    const bool has_test = arguments.positional.size() > used;
    const bool is_chosen =
        has_test ? apply_test(arguments.positional[used].text(), tested, after(arguments, used + 1)) : tested.is_true();
    if (is_chosen == wanted) result.push_back(item);
  }
  return result;
}

Value map_filter(const Value& value, const Arguments& arguments) {
  List result;
  const Value* path = arguments.find(arguments.positional.size(), "attribute");
  const Value* fallback = arguments.find(arguments.positional.size(), "default");
  for (const Value& item : value.elements(arguments.budget)) {
    arguments.budget.spend(4 * WorkBudget::kExpression);
    if (!path) {
      result.push_back(apply_filter(arguments.at(0, "filter").text(), item, after(arguments, 1)));
      continue;
    }
    Value found = member(item, path->str(), arguments.budget);
    result.push_back(found.is_undefined() && fallback ? *fallback : std::move(found));
  }
  return result;
}

Value sort_filter(const Value& value, const Arguments& arguments) {
  List items = value.elements(arguments.budget);
  const bool is_reversed = flag(arguments, 0, "reverse", false),
             keeps_case = flag(arguments, 1, "case_sensitive", false);
  const Value* path = arguments.find(2, "attribute");
  std::vector<std::pair<Value, Value>> keyed;
  for (const Value& item : items) {
    const Value key = path ? member(item, path->str(), arguments.budget) : item;
    keyed.emplace_back(key.is_text() && !keeps_case ? Value(lower(key.text())) : key, item);
  }
  const auto is_before = [&](const auto& a, const auto& b) {
    arguments.budget.spend(WorkBudget::kElement + std::min(a.first.size(), b.first.size()));
    return is_reversed ? is_less(b.first, a.first) : is_less(a.first, b.first);
  };
  std::ranges::stable_sort(keyed, is_before);
  std::ranges::transform(keyed, items.begin(), [](const auto& pair) { return pair.second; });
  return items;
}

Value unique_filter(const Value& value, const Arguments& arguments) {
  List keys, result;
  for (const Value& item : value.elements(arguments.budget)) {
    Value key = item.is_text() ? Value(lower(item.text())) : item;
    const auto is_same = [&](const Value& other) {
      arguments.budget.spend(std::min(key.size(), other.size()));
      return key == other;
    };
    if (std::ranges::any_of(keys, is_same)) continue;
    keys.push_back(std::move(key));
    result.push_back(item);
  }
  return result;
}

Value items_of(const Value& value) {
  List pairs;
  if (value.is_undefined()) return pairs;
  for (const auto& [key, member] : value.dict().members) pairs.push_back(Value::tuple({key, member}));
  return pairs;
}

Value dictsort_filter(const Value& value, const Arguments& arguments) {
  const bool keeps_case = flag(arguments, 0, "case_sensitive", false);
  List pairs = items_of(value).list();
  const auto key = [&](const Value& pair) { return keeps_case ? pair.list()[0].text() : lower(pair.list()[0].text()); };
  std::ranges::stable_sort(pairs, {}, key);
  return pairs;
}

Value join_filter(const Value& value, const Arguments& arguments) {
  const Value* separator = arguments.find(0, "d");
  const Value* path = arguments.find(1, "attribute");
  std::vector<std::string> parts;
  for (const Value& item : value.elements(arguments.budget))
    parts.push_back(path ? member(item, path->str(), arguments.budget).str() : item.str());
  return join_texts(parts, separator ? separator->str() : "");
}

Value replace_filter(const Value& value, const Arguments& arguments) {
  const Value* count = arguments.find(2, "count");
  return replace_text(value.str(), arguments.at(0, "old").str(), arguments.at(1, "new").str(),
                      count && !count->is_none() ? count->integer() : -1);
}

Value tojson_filter(const Value& value, const Arguments& arguments) {
  const Value* indent = arguments.find(arguments.positional.size(), "indent");
  if (!arguments.positional.empty()) indent = &arguments.positional[0];
  for (const auto& [name, argument] : arguments.named) {
    const bool is_known = name == "indent" || name == "ensure_ascii" || name == "sort_keys" || name == "separators";
    check_input(is_known, "tojson: unknown argument ", name);
    check_input(name != "ensure_ascii" || !argument.is_true(), "tojson: ensure_ascii=true is not supported");
    check_input(name != "separators" || argument.is_none(), "tojson: separators are not supported");
  }
  const Value* sorts = arguments.find(arguments.positional.size(), "sort_keys");
  const i64 spaces = indent && !indent->is_none() ? indent->integer() : -1;
  arguments.budget.spend(8 * value.size());
  check_input(spaces <= 100, "tojson: an indent of ", spaces, " is too large");
  return to_json(value, spaces, sorts && sorts->is_true());
}

Value indent_filter(const Value& value, const Arguments& arguments) {
  const Value* width = arguments.find(0, "width");
  const bool indents_first = flag(arguments, 1, "first", false), indents_blank = flag(arguments, 2, "blank", false);
  std::string space(4, ' ');
  if (width && width->is_text()) space = width->text();
  if (width && !width->is_text()) {
    check_input(width->integer() >= 0 && width->integer() <= 1000, "indent: the width must be 0 to 1000");
    space.assign(static_cast<std::size_t>(width->integer()), ' ');
  }
  std::string result;
  bool is_first = true;
  for (const std::string& line : split(value.str(), '\n')) {
    if (!is_first) result += '\n';
    if (is_first ? indents_first : (indents_blank || !line.empty())) result += space;
    result += line;
    check_text_size(result.size(), "indent");
    is_first = false;
  }
  return result;
}

Value int_filter(const Value& value, const Arguments& arguments) {
  const Value* fallback = arguments.find(0, "default");
  if (value.is_float() && std::abs(value.number()) < 9e18) return Value(static_cast<i64>(value.number()));
  if (value.is_number()) return Value(value.integer());
  const std::string text = value.is_text() ? strip(value.text()) : "";
  if (const auto integer = parse_number<i64>(text)) return Value(*integer);
  const auto number = parse_number<double>(text);
  if (number && std::abs(*number) < 9e18) return Value(static_cast<i64>(*number));
  return fallback ? *fallback : Value(i64{0});
}

Value float_filter(const Value& value, const Arguments& arguments) {
  const Value* fallback = arguments.find(0, "default");
  if (value.is_number()) return Value(value.number());
  const auto number = parse_number<double>(value.is_text() ? strip(value.text()) : "");
  return number ? Value(*number) : fallback ? *fallback : Value(0.0);
}

Value round_filter(const Value& value, const Arguments& arguments) {
  const Value* precision = arguments.find(0, "precision");
  const double scale = std::pow(10, precision ? precision->number() : 0);
  return Value(std::nearbyint(value.number() * scale) / scale);
}

Value default_filter(const Value& value, const Arguments& arguments) {
  const Value* fallback = arguments.find(0, "default_value");
  const bool replaces = value.is_undefined() || (flag(arguments, 1, "boolean", false) && !value.is_true());
  return !replaces ? value : fallback ? *fallback : Value("");
}

Value sum_filter(const Value& value, const Arguments& arguments) {
  const Value* path = arguments.find(0, "attribute");
  const Value* start = arguments.find(1, "start");
  Value sum = start ? *start : Value(i64{0});
  for (const Value& item : value.elements(arguments.budget))
    sum = arithmetic("+", sum, path ? member(item, path->str(), arguments.budget) : item, arguments.budget);
  return sum;
}

/// Returns the smallest or the largest element.
Value extreme(const Value& value, bool is_max, const Arguments& arguments) {
  const List items = value.elements(arguments.budget);
  if (items.empty()) return Undefined{"the extreme value of an empty list"};
  arguments.budget.spend(value.size());
  return is_max ? *std::ranges::max_element(items, is_less) : *std::ranges::min_element(items, is_less);
}

Value reversed(const Value& value, const Arguments& arguments) {
  const Value sequence = value.is_text() ? value : Value(value.elements(arguments.budget));
  return slice(sequence, {}, {}, Value(i64{-1}), arguments.budget);
}

Value first_or_last(const Value& value, bool is_first, const Arguments& arguments) {
  const List items = value.elements(arguments.budget);
  if (items.empty())
    return Undefined{is_first ? "the first element of an empty list" : "the last element of an empty list"};
  return is_first ? items.front() : items.back();
}

const std::map<std::string, Filter, std::less<>>& filters() {
  static const std::map<std::string, Filter, std::less<>> table{
      {"abs",
       [](const Value& v, const Arguments&) {
         return v.is_float() ? Value(std::abs(v.number())) : Value(std::abs(v.integer()));
       }},
      {"capitalize", [](const Value& v, const Arguments&) { return Value(capitalize(v.str())); }},
      {"count", [](const Value& v, const Arguments&) { return Value(v.length()); }},
      {"d", default_filter},
      {"default", default_filter},
      {"dictsort", dictsort_filter},
      {"first", [](const Value& v, const Arguments& a) { return first_or_last(v, true, a); }},
      {"float", float_filter},
      {"indent", indent_filter},
      {"int", int_filter},
      {"items", [](const Value& v, const Arguments&) { return items_of(v); }},
      {"join", join_filter},
      {"last", [](const Value& v, const Arguments& a) { return first_or_last(v, false, a); }},
      {"length", [](const Value& v, const Arguments&) { return Value(v.length()); }},
      {"list", [](const Value& v, const Arguments& a) { return Value(v.elements(a.budget)); }},
      {"lower", [](const Value& v, const Arguments&) { return Value(lower(v.str())); }},
      {"map", map_filter},
      {"max", [](const Value& v, const Arguments& a) { return extreme(v, true, a); }},
      {"min", [](const Value& v, const Arguments& a) { return extreme(v, false, a); }},
      {"reject", [](const Value& v, const Arguments& a) { return select(v, a, false, false); }},
      {"rejectattr", [](const Value& v, const Arguments& a) { return select(v, a, true, false); }},
      {"replace", replace_filter},
      {"reverse", [](const Value& v, const Arguments& a) { return reversed(v, a); }},
      {"round", round_filter},
      {"safe", [](const Value& v, const Arguments&) { return v; }},
      {"select", [](const Value& v, const Arguments& a) { return select(v, a, false, true); }},
      {"selectattr", [](const Value& v, const Arguments& a) { return select(v, a, true, true); }},
      {"sort", sort_filter},
      {"string", [](const Value& v, const Arguments&) { return Value(v.str()); }},
      {"sum", sum_filter},
      {"title", [](const Value& v, const Arguments&) { return Value(title(v.str())); }},
      {"tojson", tojson_filter},
      {"trim",
       [](const Value& v, const Arguments& a) {
         return Value(strip(v.str(), a.find(0, "chars") ? a.at(0, "chars").text() : ""));
       }},
      {"unique", unique_filter},
      {"upper", [](const Value& v, const Arguments&) { return Value(upper(v.str())); }},
  };
  return table;
}

bool is_parity(const Value& value, i64 remainder) {
  return (value.integer() % 2 + 2) % 2 == remainder;
}

bool is_divisible(const Value& value, const Arguments& arguments) {
  const i64 divisor = arguments.at(0, "num").integer();
  check_input(divisor != 0, "divisibleby: division by zero");
  return divisor == -1 || value.integer() % divisor == 0;
}

bool is_equal(const Value& value, const Arguments& arguments) {
  return value == arguments.at(0, "other");
}

const std::map<std::string, Test, std::less<>>& tests() {
  static const std::map<std::string, Test, std::less<>> table{
      {"boolean", [](const Value& v, const Arguments&) { return v.is_bool(); }},
      {"callable", [](const Value& v, const Arguments&) { return v.is_function(); }},
      {"defined", [](const Value& v, const Arguments&) { return !v.is_undefined(); }},
      {"divisibleby", is_divisible},
      {"eq", is_equal},
      {"equalto", is_equal},
      {"even", [](const Value& v, const Arguments&) { return is_parity(v, 0); }},
      {"false", [](const Value& v, const Arguments&) { return v.is_bool() && !v.is_true(); }},
      {"float", [](const Value& v, const Arguments&) { return v.is_float(); }},
      {"ge", [](const Value& v, const Arguments& a) { return !is_less(v, a.at(0, "other")); }},
      {"gt", [](const Value& v, const Arguments& a) { return is_less(a.at(0, "other"), v); }},
      {"in", [](const Value& v, const Arguments& a) { return contains(a.at(0, "seq"), v, a.budget); }},
      {"integer", [](const Value& v, const Arguments&) { return v.is_integer(); }},
      {"iterable",
       [](const Value& v, const Arguments&) { return v.is_text() || v.is_list() || v.is_dict() || v.is_undefined(); }},
      {"le", [](const Value& v, const Arguments& a) { return !is_less(a.at(0, "other"), v); }},
      {"lower",
       [](const Value& v, const Arguments&) { return v.str() == lower(v.str()) && v.str() != upper(v.str()); }},
      {"lt", [](const Value& v, const Arguments& a) { return is_less(v, a.at(0, "other")); }},
      {"mapping", [](const Value& v, const Arguments&) { return v.is_dict() && !v.dict().is_namespace; }},
      {"ne", [](const Value& v, const Arguments& a) { return !is_equal(v, a); }},
      {"none", [](const Value& v, const Arguments&) { return v.is_none(); }},
      {"number", [](const Value& v, const Arguments&) { return v.is_number(); }},
      {"odd", [](const Value& v, const Arguments&) { return is_parity(v, 1); }},
      {"sequence",
       [](const Value& v, const Arguments&) {
         return v.is_text() || v.is_list() || (v.is_dict() && !v.dict().is_namespace) || v.is_undefined();
       }},
      {"string", [](const Value& v, const Arguments&) { return v.is_text(); }},
      {"true", [](const Value& v, const Arguments&) { return v.is_bool() && v.is_true(); }},
      {"undefined", [](const Value& v, const Arguments&) { return v.is_undefined(); }},
      {"upper",
       [](const Value& v, const Arguments&) { return v.str() == upper(v.str()) && v.str() != lower(v.str()); }},
  };
  return table;
}

/// Returns the entry `name` of a table. Throws BadInput if there is none.
template <class Table>
auto find_in(const Table& table, const std::string& name, const char* kind) {
  const auto it = table.find(name);
  if (it != table.end()) return it->second;
  std::vector<std::string> names;
  for (const auto& [known, function] : table) names.push_back(known);
  fail(ExitCode::BadInput, "the ", kind, " '", name, "' is not supported; supported are ", join(names, ", "));
}

}  // namespace

Value apply_filter(const std::string& name, const Value& value, const Arguments& arguments) {
  const Filter filter = find_in(filters(), name, "filter");
  // Filters that do not read all parts of a list or dictionary; elements() pays for those that they copy.
  static const std::set<std::string, std::less<>> kReadNoParts{
      "count", "d",   "default", "first",      "items",   "last", "length", "list",      "map",
      "max",   "min", "reject",  "rejectattr", "reverse", "safe", "select", "selectattr"};
  if (value.is_text() || !kReadNoParts.contains(name)) arguments.budget.spend(value.size());
  if (value.is_dict() && name == "items") arguments.budget.spend(value.dict().members.size(), WorkBudget::kElement);
  for (const Value& argument : arguments.positional) arguments.budget.spend(argument.is_text() ? argument.size() : 1);
  Value result = filter(value, arguments);
  if (result.is_text()) arguments.budget.spend(result.size());
  return result;
}

bool apply_test(const std::string& name, const Value& value, const Arguments& arguments) {
  const Test test = find_in(tests(), name, "test");
  arguments.budget.spend(WorkBudget::kExpression);
  if (name == "lower" || name == "upper") arguments.budget.spend(2 * value.size());
  if (!arguments.positional.empty()) arguments.budget.spend(std::min(value.size(), arguments.positional[0].size()));
  return test(value, arguments);
}

}  // namespace mcpp::jinja
