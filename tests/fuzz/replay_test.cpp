// Every input kept in tests/fuzz/corpus/ is still read, or refused as bad input, by the program of the ordinary build.
#include <gtest/gtest.h>

#include <chrono>

#include "base/check.h"
#include "tests/fuzz/targets.h"
#include "tests/support/build.h"

namespace mcpp::fuzz {
namespace {

class FuzzCorpus : public testing::TestWithParam<Target> {};

TEST_P(FuzzCorpus, IsReadOrRefused) {
  int inputs = 0;
  for (const auto& entry :
       std::filesystem::directory_iterator(test::source_folder() / "tests/fuzz/corpus" / GetParam().name)) {
    const auto start = std::chrono::steady_clock::now();
    EXPECT_EQ(finding(GetParam(), read_text_file(entry.path())), "") << entry.path();
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(5)) << entry.path();
    ++inputs;
  }
  EXPECT_GT(inputs, 0);
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
