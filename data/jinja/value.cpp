#include "data/jinja/value.h"

#include <algorithm>
#include <cmath>
#include <compare>
#include <cstring>
#include <map>

#include "base/check.h"
#include "base/number_format.h"
#include "base/utf8.h"

namespace mcpp::jinja {
namespace {

template <class... Parts>
[[noreturn]] void fail_template(const Parts&... parts) {
  fail(ExitCode::BadInput, parts...);
}

/// Returns a float as Python prints it.
std::string float_text(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  return shortest(value);
}

/// Returns a float as Python's json.dumps() writes it.
std::string json_float_text(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "Infinity" : "-Infinity";
  return shortest(value);
}

/// Returns the text of a string as Python's repr() prints it.
std::string quoted(const std::string& text) {
  const bool has_single = text.find('\'') != std::string::npos, has_double = text.find('"') != std::string::npos;
  const char quote = has_single && !has_double ? '"' : '\'';
  std::string result(1, quote);
  for (const char c : text) {
    const auto byte = static_cast<u8>(c);
    if (c == quote || c == '\\')
      result += {'\\', c};
    else if (c == '\n')
      result += "\\n";
    else if (c == '\r')
      result += "\\r";
    else if (c == '\t')
      result += "\\t";
    else if (byte < 0x20 || byte == 0x7F)
      result += mcpp::str("\\x", "0123456789abcdef"[byte / 16], "0123456789abcdef"[byte % 16]);
    else
      result += c;
  }
  return result + quote;
}

/// Writes JSON like Python's json.dumps().
class JsonWriter {
 public:
  JsonWriter(i64 indent, bool sorts_keys) : indent_(indent), sorts_keys_(sorts_keys) {}

  void write(const Value& value, i64 depth) {
    if (value.is_none())
      text_ += "null";
    else if (value.is_bool())
      text_ += value.is_true() ? "true" : "false";
    else if (value.is_integer())
      text_ += mcpp::str(value.integer());
    else if (value.is_float())
      text_ += json_float_text(value.number());
    else if (value.is_text())
      text_ += OrderedJson(value.text()).dump();
    else if (value.is_list())
      write_list(value.list(), depth);
    else if (value.is_dict() && !value.dict().is_namespace)
      write_dict(value.dict(), depth);
    else
      fail_template("tojson: a ", value.is_dict() ? "namespace" : "value of type " + value.type_name(), " is not JSON");
    check_text_size(text_.size(), "tojson");
  }
  std::string take() { return std::move(text_); }

 private:
  void begin_line(i64 depth) {
    if (indent_ < 0) return;
    text_ += '\n';
    text_.append(static_cast<std::size_t>(indent_ * depth), ' ');
  }
  void write_separator(bool is_first) {
    if (!is_first) text_ += indent_ >= 0 ? "," : ", ";
  }
  void write_list(const List& items, i64 depth) {
    text_ += '[';
    for (std::size_t i = 0; i < items.size(); ++i) {
      write_separator(i == 0);
      begin_line(depth + 1);
      write(items[i], depth + 1);
    }
    if (!items.empty()) begin_line(depth);
    text_ += ']';
  }
  void write_dict(const Dict& dict, i64 depth) {
    std::vector<std::pair<std::string, Value>> members = dict.members;
    if (sorts_keys_) std::ranges::stable_sort(members, {}, [](const auto& member) { return member.first; });
    text_ += '{';
    for (std::size_t i = 0; i < members.size(); ++i) {
      write_separator(i == 0);
      begin_line(depth + 1);
      text_ += OrderedJson(members[i].first).dump() + ": ";
      write(members[i].second, depth + 1);
    }
    if (!members.empty()) begin_line(depth);
    text_ += '}';
  }

  i64 indent_;
  bool sorts_keys_;
  std::string text_;
};

}  // namespace

void check_text_size(std::size_t bytes, std::string_view function) {
  check_input(bytes <= kMaxTextBytes, function, ": the text becomes longer than ", kMaxTextBytes, " bytes");
}

void WorkBudget::spend(i64 units) {
  left_ -= units;
  check_input(left_ >= 0, "the template runs too long");
}

Arguments::Arguments(WorkBudget& paying) : budget(paying) {}

const Value* Arguments::find(std::size_t index, std::string_view name) const {
  if (index < positional.size()) return &positional[index];
  for (const auto& [key, value] : named)
    if (key == name) return &value;
  return nullptr;
}

const Value& Arguments::at(std::size_t index, std::string_view name) const {
  const Value* value = find(index, name);
  check_input(value != nullptr, "the argument ", name, " is missing");
  return *value;
}

void Arguments::check_at_most(std::size_t count, std::string_view function) const {
  check_input(positional.size() + named.size() <= count, function, ": takes at most ", count, " arguments, not ",
              positional.size() + named.size());
}

const Value* Dict::find(std::string_view key) const {
  for (const auto& [name, value] : members)
    if (name == key) return &value;
  return nullptr;
}

void Dict::set(std::string_view key, Value value) {
  for (auto& [name, old] : members) {
    if (name == key) {
      old = std::move(value);
      return;
    }
  }
  members.emplace_back(key, std::move(value));
}

Value::Value(std::string text) : size_(1 + std::ssize(text)) {
  data_ = std::make_shared<const std::string>(std::move(text));
}
Value::Value(List items) {
  for (const Value& item : items) count_part(item);
  check_bounds("list");
  data_ = std::make_shared<const List>(std::move(items));
}
Value::Value(Dict members) {
  for (const auto& [key, value] : members.members) {
    count_part(value);
    size_ += std::ssize(key);
  }
  check_bounds("dictionary");
  data_ = std::make_shared<Dict>(std::move(members));
}
Value::Value(Function function) : data_(std::make_shared<const Function>(std::move(function))) {}

Value Value::tuple(List items) {
  Value value(std::move(items));
  value.is_tuple_ = true;
  return value;
}

Value Value::of_json(const OrderedJson& json, i64 depth) {
  check_input(depth <= kMaxDepth, "JSON is nested deeper than ", kMaxDepth, " levels");
  if (json.is_boolean()) return Value(json.get<bool>());
  if (json.is_number_integer()) return Value(json.get<i64>());
  if (json.is_number()) return Value(json.get<double>());
  if (json.is_string()) return json.get<std::string>();
  if (json.is_array()) {
    List items;
    for (const OrderedJson& item : json) items.push_back(of_json(item, depth + 1));
    return items;
  }
  if (!json.is_object()) return {};
  Dict dict;
  for (const auto& [key, value] : json.items()) dict.members.emplace_back(key, of_json(value, depth + 1));
  return dict;
}

void Value::count_part(const Value& part) {
  depth_ = std::max(depth_, part.depth_ + 1);
  size_ += part.size_;
}

void Value::check_bounds(std::string_view kind) const {
  check_input(depth_ <= kMaxDepth, "a ", kind, " is nested deeper than ", kMaxDepth, " levels");
  check_input(size_ <= kMaxSize, "a ", kind, " becomes larger than ", kMaxSize, " values and bytes of text");
}

void Value::fail_type(std::string_view wanted) const {
  if (const auto* undefined = std::get_if<Undefined>(&data_)) fail_template(undefined->name, " is undefined");
  fail_template("expected ", wanted, ", not a value of type ", type_name(), ": ", repr().substr(0, 80));
}

i64 Value::integer() const {
  if (is_bool()) return std::get<bool>(data_) ? 1 : 0;
  if (!is_integer()) fail_type("an integer");
  return std::get<i64>(data_);
}
double Value::number() const {
  if (is_float()) return std::get<double>(data_);
  if (!is_number()) fail_type("a number");
  return static_cast<double>(integer());
}
const std::string& Value::text() const {
  if (!is_text()) fail_type("a string");
  return *std::get<Text>(data_);
}
const List& Value::list() const {
  if (!is_list()) fail_type("a list");
  return *std::get<Items>(data_);
}
Dict& Value::dict() const {
  if (!is_dict()) fail_type("a dictionary");
  return *std::get<Members>(data_);
}
const Function& Value::function() const {
  if (!is_function()) fail_type("a function");
  return *std::get<Callable>(data_);
}

bool Value::is_true() const {
  if (is_undefined() || is_none()) return false;
  if (is_float()) return number() != 0;
  if (is_number()) return integer() != 0;
  if (is_text()) return !text().empty();
  if (is_list()) return !list().empty();
  return !is_dict() || dict().is_namespace || !dict().members.empty();
}

std::string Value::str() const {
  if (is_undefined()) return "";
  return is_text() ? text() : repr();
}

std::string Value::repr() const {
  std::string text;
  append_repr(text);
  return text;
}

void Value::append_repr(std::string& text) const {
  if (is_undefined()) text += "Undefined";
  if (is_none()) text += "None";
  if (is_bool()) text += is_true() ? "True" : "False";
  if (is_integer()) text += mcpp::str(integer());
  if (is_float()) text += float_text(number());
  if (is_text()) text += quoted(this->text());
  if (is_function()) text += "<function>";
  if (is_list()) {
    text += is_tuple_ ? '(' : '[';
    for (const Value& item : list()) {
      if (&item != &list().front()) text += ", ";
      item.append_repr(text);
    }
    if (is_tuple_ && list().size() == 1) text += ',';
    text += is_tuple_ ? ')' : ']';
  }
  if (is_dict() && dict().is_namespace) {
    text += "<Namespace>";
  } else if (is_dict()) {
    text += '{';
    for (const auto& member : dict().members) {
      if (&member != &dict().members.front()) text += ", ";
      text += quoted(member.first) + ": ";
      member.second.append_repr(text);
    }
    text += '}';
  }
  check_text_size(text.size(), "printing a value");
}

std::string Value::type_name() const {
  constexpr const char* kNames[]{"Undefined", "NoneType", "bool", "int", "float", "str", "list", "dict", "function"};
  return kNames[data_.index()];
}

List Value::elements(WorkBudget& budget) const {
  if (is_undefined()) return {};
  budget.spend(is_text() ? text().size() : is_list() ? list().size() : 0, WorkBudget::kElement);
  if (is_list()) return list();
  List result;
  if (is_text()) {
    for (const std::string_view c : characters(text())) result.emplace_back(std::string(c));
    return result;
  }
  if (!is_dict() || dict().is_namespace) fail_type("a list, a dictionary or a string");
  budget.spend(dict().members.size(), WorkBudget::kElement);
  for (const auto& [key, value] : dict().members) result.emplace_back(key);
  return result;
}

i64 Value::length() const {
  if (is_text()) return count_characters(text());
  if (is_list()) return std::ssize(list());
  if (is_undefined()) return 0;
  if (!is_dict() || dict().is_namespace) fail_type("a list, a dictionary or a string");
  return std::ssize(dict().members);
}

bool operator==(const Value& a, const Value& b) {
  if (a.is_number() && b.is_number()) {
    const bool is_exact = !a.is_float() && !b.is_float();
    return is_exact ? a.integer() == b.integer() : a.number() == b.number();
  }
  if (a.is_undefined() || b.is_undefined()) return a.is_undefined() && b.is_undefined();
  if (a.is_none() || b.is_none()) return a.is_none() && b.is_none();
  if (a.is_text() && b.is_text()) return a.text() == b.text();
  if (a.is_list() && b.is_list()) return a.list() == b.list();
  if (!a.is_dict() || !b.is_dict()) return false;
  if (a.dict().is_namespace || b.dict().is_namespace) return &a.dict() == &b.dict();
  if (a.dict().members.size() != b.dict().members.size()) return false;
  std::map<std::string_view, const Value*> members;
  for (const auto& [key, value] : b.dict().members) members.emplace(key, &value);
  return std::ranges::all_of(a.dict().members, [&](const auto& member) {
    const auto other = members.find(member.first);
    return other != members.end() && *other->second == member.second;
  });
}

namespace {

/// Returns the order of two values, which visits every part at most once. Like Python, orders lists by their first
/// elements that differ. Throws BadInput if those cannot be ordered.
std::partial_ordering compare(const Value& a, const Value& b) {
  if (a.is_number() && b.is_number()) {
    const bool is_exact = !a.is_float() && !b.is_float();
    if (is_exact) return a.integer() <=> b.integer();
    return a.number() <=> b.number();
  }
  if (a.is_text() && b.is_text()) return a.text() <=> b.text();
  check_input(a.is_list() && b.is_list(), "values of the types ", a.type_name(), " and ", b.type_name(),
              " cannot be ordered");
  const std::size_t common = std::min(a.list().size(), b.list().size());
  for (std::size_t i = 0; i < common; ++i) {
    const Value &x = a.list()[i], &y = b.list()[i];
    const bool can_order =
        (x.is_number() && y.is_number()) || (x.is_text() && y.is_text()) || (x.is_list() && y.is_list());
    if (!can_order && x == y) continue;
    const std::partial_ordering order = compare(x, y);
    if (order != std::partial_ordering::equivalent) return order;
  }
  return a.list().size() <=> b.list().size();
}

}  // namespace

bool is_less(const Value& a, const Value& b) {
  return compare(a, b) == std::partial_ordering::less;
}

bool contains(const Value& container, const Value& value, WorkBudget& budget) {
  if (container.is_dict()) {
    budget.spend(container.dict().members.size(), 2);
    return value.is_text() && container.dict().find(value.text()) != nullptr;
  }
  budget.spend(container.size() + value.size());
  if (container.is_text()) return find_part(container.text(), value.text()) != std::string_view::npos;
  if (container.is_undefined()) return false;
  return std::ranges::count(container.list(), value) > 0;
}

std::string to_json(const Value& value, i64 indent, bool sorts_keys) {
  JsonWriter writer(indent, sorts_keys);
  writer.write(value, 0);
  return writer.take();
}

std::size_t find_part(std::string_view text, std::string_view part) {
  const void* found = memmem(text.data(), text.size(), part.data(), part.size());
  return found ? static_cast<std::size_t>(static_cast<const char*>(found) - text.data()) : std::string_view::npos;
}

std::vector<std::string_view> characters(std::string_view text) {
  std::vector<std::string_view> result;
  while (!text.empty()) {
    const auto size = static_cast<std::size_t>(std::max<i64>(1, utf8_sequence_length(text)));
    result.push_back(text.substr(0, size));
    text.remove_prefix(size);
  }
  return result;
}

}  // namespace mcpp::jinja
