#include "megatron_cpp/inference/json_line.h"

#include "base/json.h"

namespace mcpp {

nlohmann::json parse_json_line(std::string_view line) {
  nlohmann::json object;
  try {
    object = Json::parse(line, UniqueKeys());
  } catch (const nlohmann::json::exception& error) {
    fail(ExitCode::BadInput, "malformed JSON: ", error.what());
  }
  check_input(object.is_object(), "not a JSON object; each line must be one");
  return object;
}

std::string text_member(const nlohmann::json& object, const char* key) {
  const auto it = object.find(key);
  check_input(it != object.end(), "has no key \"", key, "\"");
  check_input(it->is_string(), "\"", key, "\" is not a string");
  return it->get<std::string>();
}

}  // namespace mcpp
