#include "base/json.h"

namespace mcpp {

bool UniqueKeys::operator()(int /*depth*/, Json::parse_event_t event, const Json& parsed) {
  if (event == Json::parse_event_t::object_start) keys_.emplace_back();
  if (event == Json::parse_event_t::object_end) keys_.pop_back();
  if (event == Json::parse_event_t::key) {
    const auto& key = parsed.get_ref<const std::string&>();
    check_input(keys_.back().insert(key).second, prefix_, "the key '", key, "' appears twice");
  }
  return true;
}

Json parse_json(std::string_view text, std::string_view source) {
  constexpr int kMaxDepth = 16;
  UniqueKeys unique_keys(str(source, ": "));
  const auto check_event = [&](int depth, Json::parse_event_t event, Json& parsed) {
    check_input(depth <= kMaxDepth, source, ": nested deeper than ", kMaxDepth, " levels");
    return unique_keys(depth, event, parsed);
  };
  Json parsed;
  try {
    parsed = Json::parse(text, check_event);
  } catch (const Json::exception& error) {
    fail(ExitCode::BadInput, source, " is not valid JSON: ", error.what());
  }
  check_input(parsed.is_object(), source, " is not a JSON object");
  return parsed;
}

JsonObject::JsonObject(const Json& value, std::string source) : value_(&value), source_(std::move(source)) {
  check_input(value.is_object(), source_, " is not a JSON object");
}

const Json* JsonObject::find(const std::string& key) const {
  const auto it = value_->find(key);
  return it == value_->end() || it->is_null() ? nullptr : &*it;
}

const Json& JsonObject::at(const std::string& key) const {
  const Json* value = find(key);
  require(value != nullptr, key, "is missing");
  return *value;
}

i64 JsonObject::integer(const std::string& key, i64 min, i64 max) const {
  const Json& value = at(key);
  require(value.is_number_integer(), key, "is not an integer");
  // Rejects unsigned values above the i64 range, which would wrap to negative values.
  require(!value.is_number_unsigned() || value.get<u64>() <= u64{std::numeric_limits<i64>::max()}, key, "is too large");
  const i64 number = value.get<i64>();
  require(number >= min && number <= max, key, "is ", number, "; allowed: ", min, " to ", max);
  return number;
}

double JsonObject::number(const std::string& key) const {
  const Json& value = at(key);
  require(value.is_number(), key, "is not a number");
  return value.get<double>();
}

bool JsonObject::boolean(const std::string& key) const {
  const Json& value = at(key);
  require(value.is_boolean(), key, "is neither true nor false");
  return value.get<bool>();
}

const std::string& JsonObject::text(const std::string& key) const {
  const Json& value = at(key);
  require(value.is_string(), key, "is not a string");
  return value.get_ref<const std::string&>();
}

JsonObject JsonObject::object(const std::string& key) const {
  return {at(key), str(source_, ": '", key, "'")};
}

const Json& JsonObject::array(const std::string& key) const {
  const Json& value = at(key);
  require(value.is_array(), key, "is not an array");
  return value;
}

std::vector<i64> JsonObject::integers(const std::string& key, std::size_t max_size) const {
  const Json& values = array(key);
  require(values.size() <= max_size, key, "has ", values.size(), " elements; allowed: at most ", max_size);
  std::vector<i64> integers;
  for (const Json& value : values) {
    require(value.is_number_unsigned() && value.get<u64>() <= u64{std::numeric_limits<i64>::max()}, key,
            "has an element that is not a non-negative integer");
    integers.push_back(value.get<i64>());
  }
  return integers;
}

}  // namespace mcpp
