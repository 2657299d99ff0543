// Reasons of the layouts that a search returns.
#include "plan/search.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "plan/report/report.h"
#include "tests/support/layouts/toy_cluster.h"

namespace mcpp::search_test {
namespace {

using testing::HasSubstr;

TEST(SearchTest, EachLayoutButTheFirstHasItsReason) {
  const Hardware hardware = test::toy_cluster(100, 10);
  const KernelTraits program;
  const Workload work = test::toy_workload(16, 4096, 32, 64);
  const SearchResult result =
      search_layouts(hardware, program, work, {.world_size = 32, .memory_bytes = hardware.memory_bytes()});
  ASSERT_EQ(result.best.size(), 5);
  EXPECT_EQ(result.best.front().reason, "");
  for (std::size_t i = 1; i < 5; ++i)
    EXPECT_EQ(result.best[i].reason, slowdown_reason(hardware, result.best[i], result.best.front()));
  const std::string text = search_text({hardware, program, work, result.best.front().layout}, result);
  const std::string row = result.best[3].layout.describe() + " (" + result.best[3].reason + ")\n";
  EXPECT_THAT(text, HasSubstr(row));
}

}  // namespace
}  // namespace mcpp::search_test
