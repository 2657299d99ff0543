// Every input kept in tests/fuzz/corpus/ and tests/fuzz/found/ is still read, or refused as bad input, by the program
// of the ordinary build.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>

#include "base/check.h"
#include "tests/fuzz/targets.h"
#include "tests/support/build.h"
#include "tests/support/scratch_folder.h"

namespace mcpp::fuzz {
namespace {

class FuzzCorpus : public testing::TestWithParam<Target> {};

/// How many inputs there are.
int replay(const Target& target, const Path& folder) {
  int inputs = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const auto start = std::chrono::steady_clock::now();
    EXPECT_EQ(finding(target, read_text_file(entry.path())), "") << entry.path();
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(5)) << entry.path();
    ++inputs;
  }
  return inputs;
}

TEST_P(FuzzCorpus, WhatWasWrittenByHandIsReadOrRefused) {
  EXPECT_GT(replay(GetParam(), test::source_folder() / "tests/fuzz/corpus" / GetParam().name), 0);
}

TEST_P(FuzzCorpus, WhatFuzzingFoundIsReadOrRefused) {
  const Path archive = test::source_folder() / "tests/fuzz/found" / str(GetParam().name, ".tar.gz");
  if (!std::filesystem::exists(archive)) GTEST_SKIP() << "nothing was found";
  const test::ScratchFolder folder;
  const std::string unpack = str("tar -xzf '", archive.string(), "' -C '", folder.path().string(), "'");
  ASSERT_EQ(std::system(unpack.c_str()), 0);
  EXPECT_GT(replay(GetParam(), folder.path()), 0);
}

INSTANTIATE_TEST_SUITE_P(Targets, FuzzCorpus, testing::ValuesIn(targets().begin(), targets().end()),
                         [](const auto& target) { return std::string(target.param.name); });

TEST(FuzzTargets, AFindingIsAnythingButBadInput) {
  const auto outcome = [](void (*read)(std::string_view)) { return finding({"", read}, ""); };
  EXPECT_EQ(outcome([](std::string_view) {}), "");
  EXPECT_EQ(outcome([](std::string_view) { fail(ExitCode::BadInput, "refused"); }), "");
  EXPECT_EQ(outcome([](std::string_view) { fail(ExitCode::Internal, "a bug"); }), "exit code 1: a bug");
  EXPECT_NE(outcome([](std::string_view) { throw std::out_of_range("at"); }), "");
}

}  // namespace
}  // namespace mcpp::fuzz
