// Paths of golden values and scratch folders for the tests of this room.
#pragma once
#include <gtest/gtest.h>
#include <unistd.h>

#include <functional>
#include <string>

#include "base/check.h"
#include "base/file.h"

namespace mcpp::test {

inline Path golden_data() {
  return Path(MCPP_SOURCE_DIR) / "tests/golden/data";
}

/// A fresh folder, removed at the end of the test.
class ScratchFolder {
 public:
  ScratchFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "mcpp-data-XXXXXX").string();
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

/// The message of the BadInput error that `f` throws; "" when it throws none.
inline std::string input_error(const std::function<void()>& f) {
  try {
    f();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::BadInput) << error.what();
    return error.what();
  }
  return "";
}

}  // namespace mcpp::test
