// Preference for simple layouts among those that are predicted to take the same time.
#include <gtest/gtest.h>

#include "plan/layouts.h"
#include "plan/report/report.h"
#include "plan/search.h"
#include "tests/support/layouts/toy_cluster.h"

namespace mcpp {
namespace {

TEST(SimplerLayoutTest, ComplexityCountsMechanisms) {
  EXPECT_EQ(complexity({}), 0);
  EXPECT_EQ(complexity({.dp = 8, .zero_stage = 1}), 0);
  EXPECT_EQ(complexity({.dp = 8, .zero_stage = 3}), 1);
  EXPECT_EQ(complexity({.tp = 2, .pp = 4}), 2);
  EXPECT_EQ(complexity({.pp = 4, .schedule = ScheduleKind::Interleaved, .chunks = 2}), 2);
  EXPECT_EQ(complexity({.dp = 4, .activations_tier = OffloadTier::Host}), 2);
}

/// Compares with all layouts: none that is simpler than the preferred one is within 2 % of the fastest.
TEST(SimplerLayoutTest, SearchPrefersSimplestWithinTwoPercent) {
  struct Case {
    double inter_node_bandwidth;
    i64 hidden, batch, world_size;
  };
  const KernelTraits program;
  int preferred = 0;
  for (const auto& [bandwidth, hidden, batch, world_size] :
       {Case{2, 2048, 32, 32}, Case{10, 4096, 32, 32}, Case{10, 2048, 128, 16}}) {
    const Hardware hardware = test::toy_cluster(300, bandwidth);
    const Workload work = test::toy_workload(16, hidden, 32, batch);
    const SearchLimits limits{.world_size = world_size, .memory_bytes = hardware.memory_bytes()};
    const SearchResult result = search_layouts(hardware, program, work, limits);
    ASSERT_FALSE(result.best.empty());
    const Candidate &fastest = result.best.front(), &used = result.preferred();
    EXPECT_LE(used.time.seconds, 1.02 * fastest.time.seconds);
    EXPECT_LE(complexity(used.layout), complexity(fastest.layout));
    EXPECT_EQ(result.simpler.has_value(), complexity(used.layout) < complexity(fastest.layout));
    preferred += result.simpler.has_value();
    LayoutMemory memory(work);
    for_each_layout(hardware, work, limits, [&](const Layout& layout) {
      if (complexity(layout) >= complexity(used.layout)) return;
      if (memory.peak(layout).total() > limits.memory_bytes) return;
      EXPECT_GT(step_time({hardware, program, work, layout, memory.measurements()}).seconds,
                1.02 * fastest.time.seconds)
          << layout.describe();
    });
    const std::string text = search_text({hardware, program, work, fastest.layout}, result);
    EXPECT_EQ(text.find("preferred") != std::string::npos, result.simpler.has_value());
  }
  EXPECT_EQ(preferred, 2) << "two of the cases have a tie";
}

TEST(SimplerLayoutTest, RecipeNamesRulesThatAreNotFollowed) {
  const Hardware hardware = test::toy_cluster(300, 25);
  const KernelTraits program;
  const Workload work = test::toy_workload(8, 2048, 16, 64);
  SearchResult result = search_layouts(hardware, program, work, {.world_size = 16, .memory_bytes = 80e9});
  result.alternatives = {{.kind = "ZeRO 3", .candidate = {}, .reason = "3.0 % slower"}};
  const std::string text = recipe_text({{"shard", "yes", "ZeRO 3"}, {"recompute", "yes", "recompute full"}}, result);
  EXPECT_NE(text.find("yes; not followed: ZeRO 3: 3.0 % slower\n"), std::string::npos) << text;
  EXPECT_EQ(text.find("recompute full:"), std::string::npos) << text;
}

}  // namespace
}  // namespace mcpp
