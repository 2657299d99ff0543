// Tests that the regular build of the program accepts every input in tests/fuzz/corpus/ and tests/fuzz/found/, or
// rejects it as bad input.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <iterator>

#include "base/check.h"
#include "tests/fuzz/targets.h"
#include "tests/support/build.h"
#include "tests/support/scratch_folder.h"

namespace mcpp::fuzz {
namespace {

class FuzzCorpusTest : public testing::TestWithParam<Target> {};
class FuzzFindingsTest : public testing::TestWithParam<Target> {};

/// Replays all inputs of a folder. Returns their number.
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

Path findings_of(const Target& target) {
  return test::source_folder() / "tests/fuzz/found" / str(target.name, ".tar.gz");
}

TEST_P(FuzzCorpusTest, IsReadOrRejected) {
  EXPECT_GT(replay(GetParam(), test::source_folder() / "tests/fuzz/corpus" / GetParam().name), 0);
}

TEST_P(FuzzFindingsTest, AreReadOrRejected) {
  const test::ScratchFolder folder;
  const std::string unpack = str("tar -xzf '", findings_of(GetParam()).string(), "' -C '", folder.path().string(), "'");
  ASSERT_EQ(std::system(unpack.c_str()), 0);
  EXPECT_GT(replay(GetParam(), folder.path()), 0);
}

/// Returns the targets that have an archive of findings.
std::vector<Target> targets_with_findings() {
  std::vector<Target> found;
  std::ranges::copy_if(targets(), std::back_inserter(found),
                       [](const Target& target) { return std::filesystem::exists(findings_of(target)); });
  return found;
}

std::string name_of(const testing::TestParamInfo<Target>& target) {
  return std::string(target.param.name);
}

INSTANTIATE_TEST_SUITE_P(Targets, FuzzCorpusTest, testing::ValuesIn(targets().begin(), targets().end()), name_of);
INSTANTIATE_TEST_SUITE_P(Targets, FuzzFindingsTest, testing::ValuesIn(targets_with_findings()), name_of);

TEST(FuzzTargetsTest, FindingIsAnyErrorExceptBadInput) {
  const auto outcome = [](void (*read)(std::string_view)) { return finding({"", read}, ""); };
  EXPECT_EQ(outcome([](std::string_view) {}), "");
  EXPECT_EQ(outcome([](std::string_view) { fail(ExitCode::BadInput, "refused"); }), "");
  EXPECT_EQ(outcome([](std::string_view) { fail(ExitCode::Internal, "a bug"); }), "exit code 1: a bug");
  EXPECT_NE(outcome([](std::string_view) { throw std::out_of_range("at"); }), "");
}

}  // namespace
}  // namespace mcpp::fuzz
