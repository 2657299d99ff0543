// Archives in tests/golden/foreign, which tests/foreign/make_golden.py wrote with PyTorch and Megatron Core.
#pragma once
#include <gtest/gtest.h>

#include <cstdlib>

#include "base/strings.h"
#include "tests/support/build.h"

namespace mcpp::test {

inline Path foreign_golden() {
  return golden_folder() / "foreign";
}

/// Unpacks the archive `name` to `to`.
inline void unpack_foreign(const std::string& name, const Path& to) {
  std::filesystem::create_directories(to);
  const Path archive = foreign_golden() / (name + ".tar.gz");
  ASSERT_EQ(std::system(str("tar -xzf '", archive.string(), "' -C '", to.string(), "'").c_str()), 0);
}

}  // namespace mcpp::test
