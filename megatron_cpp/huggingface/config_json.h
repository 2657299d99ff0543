// Typed access to Hugging Face's config.json.
#pragma once
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/json.h"

namespace mcpp {

/// Alternative name of a key in the config.json of a model type.
struct KeyAlias {
  std::string_view key;
  const char* alias;
};

/// Reader of config.json. Getters with a `default_value` return it if the key is absent or null. All getters throw
/// BadInput, naming the file and the key, for a value of the wrong type or outside of its range.
class ConfigJson {
 public:
  ConfigJson(const Json& json, const std::string& source) : json_(json, source) {}
  /// Returns a reader of the same object that reads keys under their aliases. A key is read under its own name if only
  /// this name is present. Messages use the name that was read. `aliases` must outlive the result.
  ConfigJson with_aliases(std::span<const KeyAlias> aliases) const {
    ConfigJson config = *this;
    config.aliases_ = aliases;
    return config;
  }

  const Json* find(const char* key) const { return json_.find(name_of(key)); }
  /// Returns true if the key is present, even with value null.
  bool has_key(const char* key) const { return json_.json().contains(name_of(key)); }
  i64 integer(const char* key) const { return json_.integer(name_of(key), 1, i64{1} << 40); }
  i64 integer(const char* key, i64 default_value) const { return find(key) ? integer(key) : default_value; }
  i64 count(const char* key, i64 default_value) const {
    return find(key) ? json_.integer(name_of(key), 0, i64{1} << 40) : default_value;
  }
  double number(const char* key) const { return json_.number(name_of(key)); }
  double number(const char* key, double default_value) const { return find(key) ? number(key) : default_value; }
  bool flag(const char* key, bool default_value) const {
    return find(key) ? json_.boolean(name_of(key)) : default_value;
  }
  std::string text(const char* key, const std::string& default_value) const {
    return find(key) ? json_.text(name_of(key)) : default_value;
  }
  std::optional<ConfigJson> object(const char* key) const {
    if (!find(key)) return std::nullopt;
    return ConfigJson(json_.at(name_of(key)), str(json_.source(), ": '", name_of(key), "'"));
  }

  const Json& array(const char* key) const { return json_.array(name_of(key)); }

  /// Throws BadInput, naming the key, its value and the `allowed` values, unless `is_supported`.
  template <class Value>
  void require(bool is_supported, const char* key, const Value& value, const char* allowed) const {
    check_input(is_supported, json_.source(), ": '", name_of(key), "' is ", value,
                ", which is not supported; allowed: ", allowed);
  }

 private:
  const char* name_of(const char* key) const {
    for (const KeyAlias& alias : aliases_)
      if (alias.key == key && (json_.json().contains(alias.alias) || !json_.json().contains(key))) return alias.alias;
    return key;
  }

  JsonObject json_;
  std::span<const KeyAlias> aliases_ = {};
};

}  // namespace mcpp
