// Typed access to Hugging Face's config.json.
#pragma once
#include <optional>
#include <string>

#include "base/json.h"

namespace mcpp {

/// Reader of config.json. Getters with a `default_value` return it if the key is absent or null. All getters throw
/// BadInput, naming the file and the key, for a value of the wrong type or outside of its range.
class ConfigJson {
 public:
  ConfigJson(const Json& json, const std::string& source) : json_(json, source) {}

  const Json* find(const char* key) const { return json_.find(key); }
  /// Returns true if the key is present, even with value null.
  bool has_key(const char* key) const { return json_.json().contains(key); }
  i64 integer(const char* key) const { return json_.integer(key, 1, i64{1} << 40); }
  i64 integer(const char* key, i64 default_value) const { return json_.find(key) ? integer(key) : default_value; }
  i64 count(const char* key, i64 default_value) const {
    return json_.find(key) ? json_.integer(key, 0, i64{1} << 40) : default_value;
  }
  double number(const char* key) const { return json_.number(key); }
  double number(const char* key, double default_value) const {
    return json_.find(key) ? json_.number(key) : default_value;
  }
  bool flag(const char* key, bool default_value) const { return json_.find(key) ? json_.boolean(key) : default_value; }
  std::string text(const char* key, const std::string& default_value) const {
    return json_.find(key) ? json_.text(key) : default_value;
  }
  std::optional<ConfigJson> object(const char* key) const {
    if (!json_.find(key)) return std::nullopt;
    return ConfigJson(json_.at(key), str(json_.source(), ": '", key, "'"));
  }

  const Json& array(const char* key) const { return json_.array(key); }

  /// Throws BadInput, naming the key, its value and the `allowed` values, unless `is_supported`.
  template <class Value>
  void require(bool is_supported, const char* key, const Value& value, const char* allowed) const {
    check_input(is_supported, json_.source(), ": '", key, "' is ", value,
                ", which is not supported; allowed: ", allowed);
  }

 private:
  JsonObject json_;
};

}  // namespace mcpp
