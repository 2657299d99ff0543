// Object store of a test, which the code under test and its child processes find through environment variables.
#pragma once
#include <cstdlib>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tests/support/s3_server.h"
#include "tests/support/scratch_folder.h"

namespace mcpp::test {

/// Server with the variables that name it and an empty cache; restores the variables at the end.
class S3Environment {
 public:
  explicit S3Environment(int max_attempts = 3) {
    set("AWS_ACCESS_KEY_ID", "test-key");
    set("AWS_SECRET_ACCESS_KEY", "test-secret");
    set("AWS_ENDPOINT_URL_S3", server_.endpoint());
    set("AWS_MAX_ATTEMPTS", std::to_string(max_attempts));
    set("MEGATRON_CPP_CACHE", (folder_ / "cache").string());
  }
  ~S3Environment() {
    for (const auto& [name, value] : former_)
      value ? ::setenv(name.c_str(), value->c_str(), 1) : ::unsetenv(name.c_str());
  }
  S3Environment(const S3Environment&) = delete;
  S3Environment& operator=(const S3Environment&) = delete;

  void set(const std::string& name, const std::string& value) {
    if (!former_.contains(name)) {
      const char* former = std::getenv(name.c_str());
      former_[name] = former ? std::optional<std::string>(former) : std::nullopt;
    }
    ::setenv(name.c_str(), value.c_str(), 1);
  }
  S3Server& server() { return server_; }
  Path cache() const { return folder_ / "cache"; }
  void clear_cache() const { std::filesystem::remove_all(cache()); }

  /// Stores the files <prefix>* of a folder as s3://bucket/data/<name>.
  void store_files(const Path& prefix) {
    for (const auto& entry : std::filesystem::directory_iterator(prefix.parent_path())) {
      const std::string name = entry.path().filename().string();
      if (name.starts_with(prefix.filename().string()) && entry.is_regular_file())
        server_.set_object("/bucket/data/" + name, read_text_file(entry.path()));
    }
  }
  /// Returns the names of the objects whose path begins with "/bucket/" + prefix, without it.
  std::vector<std::string> names(const std::string& prefix) const {
    std::vector<std::string> names;
    const std::string begin = "/bucket/" + prefix;
    for (const auto& [path, content] : server_.objects())
      if (path.starts_with(begin)) names.push_back(path.substr(begin.size()));
    return names;
  }

 private:
  ScratchFolder folder_;
  S3Server server_;
  std::map<std::string, std::optional<std::string>> former_;
};

}  // namespace mcpp::test
