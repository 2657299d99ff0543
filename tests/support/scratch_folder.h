// Folders for files written by tests.
#pragma once
#include <stdlib.h>

#include <filesystem>
#include <stdexcept>
#include <string>

#include "base/file.h"

namespace mcpp::test {

/// New folder that is removed at the end of the test.
class ScratchFolder {
 public:
  explicit ScratchFolder(const Path& parent = std::filesystem::temp_directory_path()) {
    std::string name = (parent / "mcpp-test-XXXXXX").string();
    if (!::mkdtemp(name.data())) throw std::runtime_error("mkdtemp");
    path_ = name;
  }
  ~ScratchFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  Path operator/(const std::string& name) const { return path_ / name; }
  const Path& path() const { return path_; }
  std::size_t count() const {
    return static_cast<std::size_t>(std::distance(std::filesystem::directory_iterator(path_), {}));
  }

 private:
  Path path_;
};

}  // namespace mcpp::test
