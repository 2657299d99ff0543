// Reasons of the layouts that a search returns, and overlapped exchanges of experts.
#include "plan/search.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "plan/layout_memory.h"
#include "plan/report/report.h"
#include "tests/support/layouts/toy_cluster.h"

namespace mcpp::search_test {
namespace {

using testing::HasSubstr;

TEST(SearchTest, EachLayoutExceptFirstHasReason) {
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

/// Returns a mixture of experts on CPUs with slow links, which do not take cores from the computation.
Hardware hosts_with_slow_links() {
  Hardware hardware = test::toy_cluster(2, 1);
  hardware.host.cores = hardware.device.cores;
  hardware.links.ranks = {1, 1024};
  return hardware;
}

TEST(SearchTest, OverlapsExchangesOfExpertsWhenItIsFaster) {
  const KernelTraits program;
  const Workload work = test::toy_mixture(8, 1024, 16, 64, 8);
  const Hardware cpus = hosts_with_slow_links();
  SearchLimits limits{.world_size = 8, .ep = 8, .memory_bytes = cpus.memory_bytes()};
  const SearchResult overlapped = search_layouts(cpus, program, work, limits);
  ASSERT_FALSE(overlapped.best.empty());
  const Candidate& best = overlapped.best.front();
  EXPECT_TRUE(best.layout.overlap_moe_expert_parallel_comm) << best.layout.describe();
  Layout exposed = best.layout;
  exposed.overlap_moe_expert_parallel_comm = false;
  if (exposed.schedule != ScheduleKind::DualPipeV) {
    EXPECT_LT(best.time.seconds, step_time({cpus, program, work, exposed}).seconds);
    EXPECT_GT(best.memory.total(), LayoutMemory(work).peak(exposed).total()) << "two passes in flight";
  }
  const auto has_reason = [](const SearchResult& result, const std::string& kind, const char* part) {
    return std::ranges::any_of(result.alternatives, [&](const Alternative& other) {
      return other.kind == kind && other.reason.find(part) != std::string::npos;
    });
  };
  EXPECT_TRUE(has_reason(overlapped, "exchanges exposed", "for their experts"))
      << search_text({cpus, program, work, best.layout}, overlapped);
  // With links that are fast enough, it does not pay: a pass in a pair needs more memory.
  limits.objective = Objective::Memory;
  EXPECT_FALSE(search_layouts(cpus, program, work, limits).best.front().layout.overlap_moe_expert_parallel_comm);
  // GPUs do not run it: the plan only states the gain.
  limits.objective = Objective::Time;
  Hardware gpus = cpus;
  gpus.host.cores = 0;
  const SearchResult reported = search_layouts(gpus, program, work, limits);
  for (const Candidate& candidate : reported.best) EXPECT_FALSE(candidate.layout.overlap_moe_expert_parallel_comm);
  EXPECT_TRUE(has_reason(reported, "exchanges overlapped", "supports CPUs only"));
}

/// With many experts per token and slow links between nodes, tokens are sent once to each node; within a node, or with
/// one expert per token, the search does not consider this.
TEST(SearchTest, DispatchesTokensByNodeWhenItIsFaster) {
  const KernelTraits program;
  Workload work = test::toy_mixture(8, 1024, 16, 64, 16);
  work.model.moe.router_topk = 8;
  const Hardware gpus = test::toy_cluster(400, 10);
  const auto best = [&](const SearchLimits& limits) {
    return search_layouts(gpus, program, work, limits).best.front().layout;
  };
  const SearchLimits two_nodes{.world_size = 16, .ep = 16, .memory_bytes = gpus.memory_bytes()};
  EXPECT_EQ(best(two_nodes).dispatcher, TokenDispatcherType::Hierarchical);
  EXPECT_EQ(best(two_nodes).dispatch_node_ranks, 8);
  EXPECT_EQ(best({.world_size = 8, .ep = 8, .memory_bytes = gpus.memory_bytes()}).dispatcher,
            TokenDispatcherType::AllToAll);
  work.model.moe.router_topk = 1;
  EXPECT_EQ(best(two_nodes).dispatcher, TokenDispatcherType::AllToAll);
}

}  // namespace
}  // namespace mcpp::search_test
