// JSON that may come from anywhere: a parse with limits, and members read with errors that name file and key.
#pragma once
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"

namespace mcpp {

using Json = nlohmann::json;
/// Keeps members in the order they were added.
using OrderedJson = nlohmann::ordered_json;

/// `text` as a JSON object. Throws BadInput, naming `source`, for anything that is not JSON, is not UTF-8, has a key
/// twice in one object, or is nested deeper than 16 levels.
Json parse_json(std::string_view text, std::string_view source);

/// A JSON object and how to call it in messages.
class JsonObject {
 public:
  /// Throws BadInput unless `value` is an object. `value` must outlive this.
  JsonObject(const Json& value, std::string source);

  /// The member, which must be there.
  const Json& at(const std::string& key) const;
  /// The member, or nullptr when it is absent or null.
  const Json* find(const std::string& key) const;

  i64 integer(const std::string& key, i64 min = 0, i64 max = std::numeric_limits<i64>::max()) const;
  double number(const std::string& key) const;
  bool boolean(const std::string& key) const;
  const std::string& text(const std::string& key) const;
  JsonObject object(const std::string& key) const;
  const Json& array(const std::string& key) const;
  /// At most `max_size` non-negative integers.
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
