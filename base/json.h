// Parser and accessors for untrusted JSON: parsing with limits, and member access with errors that name file and key.
#pragma once
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"

namespace mcpp {

using Json = nlohmann::json;
/// JSON that keeps members in insertion order.
using OrderedJson = nlohmann::ordered_json;

/// Parse callback that throws BadInput if an object has a key twice. `prefix` begins the message.
class UniqueKeys {
 public:
  explicit UniqueKeys(std::string prefix = "") : prefix_(std::move(prefix)) {}
  bool operator()(int depth, Json::parse_event_t event, const Json& parsed);

 private:
  std::string prefix_;
  std::vector<std::set<std::string>> keys_;  // one set per object that is open at this point of the text
};

/// Parses `text` as a JSON object. Throws BadInput naming `source` if the text is not JSON or not UTF-8, has a
/// duplicate key in one object, or is nested deeper than 16 levels.
Json parse_json(std::string_view text, std::string_view source);

/// JSON object with the name used for it in messages.
class JsonObject {
 public:
  /// Throws BadInput unless `value` is an object.
  JsonObject(const Json& value, std::string source);

  /// Returns the member. Throws BadInput if it is missing.
  const Json& at(const std::string& key) const;
  /// Returns the member, or nullptr if it is absent or null.
  const Json* find(const std::string& key) const;

  i64 integer(const std::string& key, i64 min = 0, i64 max = std::numeric_limits<i64>::max()) const;
  double number(const std::string& key) const;
  bool boolean(const std::string& key) const;
  const std::string& text(const std::string& key) const;
  JsonObject object(const std::string& key) const;
  const Json& array(const std::string& key) const;
  /// Returns an array of at most `max_size` non-negative integers.
  std::vector<i64> integers(const std::string& key, std::size_t max_size) const;

  const Json& json() const { return *value_; }
  const std::string& source() const { return source_; }

 private:
  template <class... Parts>
  void require(bool condition, const std::string& key, const Parts&... parts) const {
    check_input(condition, source_, ": '", key, "' ", parts...);
  }

  const Json* value_;
  std::string source_;
};

}  // namespace mcpp
