#include <gmock/gmock.h>

#include "comm/local.h"
#include "megatron_cpp/monitor/console_sink.h"
#include "megatron_cpp/monitor/rank_report.h"

namespace mcpp {
namespace {

using testing::HasSubstr;

std::vector<RankStats> computing(std::initializer_list<double> ms) {
  std::vector<RankStats> ranks;
  for (const double one : ms) ranks.push_back({.compute_ms = one});
  return ranks;
}

Topology topology(int ranks, i64 pp) {
  return {ranks, {.pp = pp}};
}

TEST(StragglersTest, NamesSlowRankNotWaitingRanks) {
  const auto found = find_slow_rank(computing({100, 101, 99, 180}), topology(4, 1), 1.5);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->what, "rank 3");
  EXPECT_EQ(
      found->text,
      "rank 3 computes 180.0 ms in an iteration, 1.8 times as long as ranks with the same work, which wait for it");
  EXPECT_FALSE(find_slow_rank(computing({100, 101, 99, 149}), topology(4, 1), 1.5));
}

TEST(StragglersTest, ComparesOnlyRanksOfSamePipelineStage) {
  EXPECT_FALSE(find_slow_rank(computing({100, 100, 300, 300}), topology(4, 2), 1.5));
  EXPECT_EQ(find_slow_rank(computing({100, 200, 300, 310}), topology(4, 2), 1.5)->what, "rank 1");
  // no other rank of the stage to compare with
  EXPECT_FALSE(find_slow_rank(computing({100, 900}), topology(2, 2), 1.5));
}

TEST(StragglersTest, NamesGroupWithSlowLink) {
  // There are two groups of two ranks. In one, rank 0 waits for rank 1, which arrives late; in the other, both ranks
  // wait for the network.
  std::vector<GroupSecondsByName> ranks(4);
  ranks[0]["dp"] = {.first = 0, .seconds = 5.0, .bytes = 1e9};
  ranks[1]["dp"] = {.first = 0, .seconds = 1.0, .bytes = 1e9};
  ranks[2]["dp"] = {.first = 2, .seconds = 3.0, .bytes = 1e9};
  ranks[3]["dp"] = {.first = 2, .seconds = 3.1, .bytes = 1e9};
  const auto found = find_slow_group(ranks, 10, 1.5);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->what, "the group dp (ranks 2 3)");
  EXPECT_THAT(found->text, HasSubstr("takes 3.0 times as long as similar groups to send"));
  EXPECT_FALSE(find_slow_group(ranks, 1000, 1.5));  // too short to matter
  EXPECT_FALSE(find_slow_group({ranks[0], ranks[1]}, 10, 1.5));
}

TEST(StragglersTest, ReportsOnceAfterTwoConsecutiveFindings) {
  StragglerReporter reporter;
  const Straggler three{.what = "rank 3", .text = "three"}, one{.what = "rank 1", .text = "one"};
  EXPECT_FALSE(reporter.add(three));
  EXPECT_EQ(reporter.add(three), "three");
  EXPECT_FALSE(reporter.add(three));
  EXPECT_FALSE(reporter.add(one));
  EXPECT_EQ(reporter.add(one), "one");
  EXPECT_FALSE(reporter.add(std::nullopt));
  EXPECT_FALSE(reporter.add(one));
  EXPECT_EQ(reporter.add(one), "one");
}

TEST(StragglersTest, GathersGroupSeconds) {
  run_local_ranks(2, [](Communicator& world, int rank) {
    const GroupSecondsByName now{{"tp", {.first = 0, .seconds = 2.5 + rank, .bytes = 100}}},
        before{{"tp", {.first = 0, .seconds = 1, .bytes = 40}}};
    const std::vector<GroupSecondsByName> all = gather_group_seconds(now - before, world);
    EXPECT_EQ(all.empty(), rank != 0);
    if (rank != 0) return;
    ASSERT_EQ(all.size(), 2u);
    EXPECT_DOUBLE_EQ(all[1].at("tp").seconds, 2.5);
    EXPECT_DOUBLE_EQ(all[0].at("tp").bytes, 60);
  });
}

TEST(TimersTest, MatchMegatronFormat) {
  run_local_ranks(2, [](Communicator& world, int rank) {
    std::map<std::string, double> seconds{{"forward-compute", 0.5 + rank}};
    if (rank == 1) seconds["only-here"] = 1;
    const std::vector<TimerStats> timers = gather_timers(seconds, 10, world);
    EXPECT_EQ(timers.empty(), rank != 0);
    if (rank != 0) return;
    EXPECT_EQ(timer_lines(timers, TimingLogOption::Minmax),
              "(min, max) time across ranks (ms):\n"
              "    forward-compute ................................: (50.00, 150.00)\n"
              "    only-here ......................................: (100.00, 100.00)");
    EXPECT_EQ(timer_lines(timers, TimingLogOption::Max),
              "max time across ranks (ms):\n"
              "    forward-compute ................................: 150.00\n"
              "    only-here ......................................: 100.00");
    EXPECT_EQ(timer_lines(timers, TimingLogOption::All),
              "times across ranks (ms):\n"
              "  forward-compute:\n     rank  0: 50.00\n     rank  1: 150.00\n"
              "  only-here:\n     rank  1: 100.00");
    EXPECT_EQ(timer_lines({}, TimingLogOption::Max), "");
  });
}

}  // namespace
}  // namespace mcpp
