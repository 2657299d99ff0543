#include <gtest/gtest.h>

#include "base/machine.h"
#include "comm/local.h"
#include "megatron_cpp/monitor/trace.h"
#include "tests/support/readers/chrome_trace.h"
#include "tests/support/scratch_folder.h"

namespace mcpp {
namespace {

using namespace std::chrono_literals;

TEST(ClockOffsetTest, IsZeroWithinProcess) {
  run_local_ranks(3, [](Communicator& world, int) {
    const ClockOffset offset = measure_clock_offset(world);
    EXPECT_EQ(offset.seconds, 0);
    EXPECT_NEAR(offset.reference, steady_seconds(), 60);
    const std::vector<double> elapsed{offset.at - offset.reference};
    EXPECT_GE(elapsed[0], 0);
  });
}

TEST(ClockOffsetTest, DriftsLinearlyBetweenComparisons) {
  const ClockOffset before{.at = 100, .seconds = 5, .uncertainty = 0, .reference = 0};
  const ClockOffset after{.at = 200, .seconds = 7, .uncertainty = 0, .reference = 0};
  EXPECT_DOUBLE_EQ(to_rank0_clock(100, before, after), 105);
  EXPECT_DOUBLE_EQ(to_rank0_clock(150, before, after), 156);
  EXPECT_DOUBLE_EQ(to_rank0_clock(200, before, after), 207);
  // An offset within the measurement error is ignored.
  const ClockOffset unsure{.at = 100, .seconds = 5, .uncertainty = 3, .reference = 0};
  EXPECT_DOUBLE_EQ(to_rank0_clock(100, unsure, after), 107);
  EXPECT_DOUBLE_EQ(to_rank0_clock(200, unsure, after), 207);
}

/// Returns the trace of a rank whose clock is `ahead` seconds ahead of rank 0 and which recorded ranges at second 3.
RankTrace trace_of(int rank, double ahead) {
  const ProfiledRange::Clock::time_point begin{std::chrono::seconds(1003 + static_cast<i64>(ahead))};
  RankTrace trace{
      .name = "rank \"" + std::to_string(rank) + "\"", .trace = {}, .before = {}, .after = {}, .totals = {}};
  trace.before = {.at = 1000 + ahead, .seconds = -ahead, .uncertainty = 1e-6, .reference = 1000};
  trace.after = {.at = 1010 + ahead, .seconds = -ahead, .uncertainty = 1e-6, .reference = 1010};
  trace.totals["bubble_seconds"] = 0.25 * rank;
  trace.trace.ranges.push_back({.name = "tp all_reduce",
                                .kind = RangeKind::Communication,
                                .begin = begin,
                                .end = begin + 1500ns,
                                .info = {.bytes = 4096, .group = "tp"}});
  trace.trace.ranges.push_back(
      {.name = "forward-compute \\ \n", .begin = begin, .end = begin + 2ms, .info = {.microbatch = 1, .chunk = 0}});
  return trace;
}

TEST(TraceFileTest, HasAllRanksOnClockOfRank0) {
  const test::ScratchFolder folder;
  run_local_ranks(3, [&](Communicator& world, int rank) {
    EXPECT_EQ(write_trace_file(folder / "trace.json", trace_of(rank, 500.0 * rank), R"({"first_iteration": 7})", world),
              "");
  });
  const nlohmann::json file = test::read_trace(folder / "trace.json");
  const std::vector<nlohmann::json> events = test::complete_events(file);
  ASSERT_EQ(events.size(), 6u);
  test::expect_nested(events);
  for (std::size_t i = 0; i < events.size(); ++i) {
    EXPECT_EQ(events[i]["pid"], i / 2);
    EXPECT_NEAR(events[i]["ts"].get<double>(), 3e6, 0.002);
  }
  EXPECT_EQ(events[0]["name"], "tp all_reduce");
  EXPECT_EQ(events[0]["cat"], "communication");
  EXPECT_EQ(events[0]["dur"], 1.5);
  EXPECT_EQ(events[0]["args"], (nlohmann::json{{"bytes", 4096}, {"group", "tp"}}));
  EXPECT_EQ(events[1]["name"], "forward-compute \\ \n");
  EXPECT_EQ(file["otherData"]["first_iteration"], 7);
  EXPECT_EQ(file["otherData"]["ranks"][2]["bubble_seconds"], 0.5);
  EXPECT_EQ(folder.count(), 1u);
}

TEST(TraceFileTest, ReportsUnwritableFileWithoutBlocking) {
  const test::ScratchFolder folder;
  run_local_ranks(2, [&](Communicator& world, int rank) {
    const std::string problem = write_trace_file(folder / "none" / "trace.json", trace_of(rank, 0), "{}", world);
    EXPECT_EQ(problem.empty(), rank != 0);
    if (rank == 0) {
      EXPECT_NE(problem.find("none"), std::string::npos) << problem;
    }
  });
}

}  // namespace
}  // namespace mcpp
