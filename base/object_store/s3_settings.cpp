#include "base/object_store/s3_settings.h"

#include <cstdlib>
#include <filesystem>
#include <map>

#include "base/check.h"
#include "base/file.h"
#include "base/url.h"

namespace mcpp {
namespace {

using Profile = std::map<std::string, std::string>;

std::string value_of(const Environment& environment, std::initializer_list<const char*> names) {
  for (const char* name : names)
    if (const char* value = environment(name); value && *value) return value;
  return {};
}

/// Adds the keys of a section of an INI file to `profile`; existing keys remain. A missing file has no keys.
void read_section(const std::string& file, std::string_view section, Profile& profile) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(file, error)) return;
  bool is_inside = false;
  for (const std::string& line : split(read_text_file(file), '\n')) {
    const std::string text = trimmed(line);
    if (text.empty() || text[0] == '#' || text[0] == ';') continue;
    if (text[0] == '[') {
      is_inside = trimmed(text.substr(1, text.find(']') - 1)) == section;
      continue;
    }
    const std::size_t equals = text.find('=');
    const bool is_nested = line[0] == ' ' || line[0] == '\t';  // a key of another service's settings
    if (is_inside && !is_nested && equals != std::string::npos)
      profile.try_emplace(to_lower(trimmed(text.substr(0, equals))), trimmed(text.substr(equals + 1)));
  }
}

Profile read_profile(const Environment& environment) {
  const std::string home = value_of(environment, {"HOME"});
  const auto file = [&](const char* variable, const char* name) {
    const std::string path = value_of(environment, {variable});
    return path.empty() ? home + "/.aws/" + name : path;
  };
  std::string name = value_of(environment, {"AWS_PROFILE", "AWS_DEFAULT_PROFILE"});
  if (name.empty()) name = "default";
  Profile profile;
  read_section(file("AWS_SHARED_CREDENTIALS_FILE", "credentials"), name, profile);
  read_section(file("AWS_CONFIG_FILE", "config"), name == "default" ? name : "profile " + name, profile);
  return profile;
}

void read_credentials(const Environment& environment, const Profile& profile, S3Settings& settings) {
  settings.access_key = value_of(environment, {"AWS_ACCESS_KEY_ID"});
  settings.secret_key = value_of(environment, {"AWS_SECRET_ACCESS_KEY"});
  settings.session_token = value_of(environment, {"AWS_SESSION_TOKEN"});
  if (settings.access_key.empty() && settings.secret_key.empty()) {
    const auto get = [&](const char* key) { return profile.contains(key) ? profile.at(key) : std::string(); };
    settings.access_key = get("aws_access_key_id");
    settings.secret_key = get("aws_secret_access_key");
    settings.session_token = get("aws_session_token");
  }
  check_input(!settings.access_key.empty() && !settings.secret_key.empty(),
              "there are no credentials for paths that begin with s3://: set AWS_ACCESS_KEY_ID and "
              "AWS_SECRET_ACCESS_KEY, or write aws_access_key_id and aws_secret_access_key into the profile of "
              "~/.aws/credentials that AWS_PROFILE names (default: default)");
}

}  // namespace

S3Settings read_s3_settings(const Environment& environment) {
  const Profile profile = read_profile(environment);
  const auto get = [&](std::initializer_list<const char*> variables, const char* key) {
    const std::string value = value_of(environment, variables);
    return value.empty() && profile.contains(key) ? profile.at(key) : value;
  };
  S3Settings settings;
  read_credentials(environment, profile, settings);
  settings.endpoint = get({"AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"}, "endpoint_url");
  while (settings.endpoint.ends_with('/')) settings.endpoint.pop_back();
  check_input(settings.endpoint.empty() || is_http_url(settings.endpoint), "AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL: '",
              settings.endpoint, "' is not a URL; set for example http://host:9000");
  settings.region = get({"AWS_REGION", "AWS_DEFAULT_REGION"}, "region");
  if (settings.region.empty()) settings.region = "us-east-1";
  settings.ca_file = get({"AWS_CA_BUNDLE"}, "ca_bundle");
  if (const std::string text = get({"AWS_MAX_ATTEMPTS"}, "max_attempts"); !text.empty()) {
    const auto attempts = parse_number<int>(text);
    check_input(attempts && *attempts >= 1, "AWS_MAX_ATTEMPTS: '", text, "' is not a number of attempts of 1 or more");
    settings.max_attempts = *attempts;
  }
  return settings;
}

S3Settings read_s3_settings() {
  return read_s3_settings([](const char* name) { return std::getenv(name); });
}

}  // namespace mcpp
