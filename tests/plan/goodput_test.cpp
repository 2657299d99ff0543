// Simulated goodput of runs with failures: agreement with formulas where there are any, and the effect of copies.
#include "plan/scaling/goodput.h"

#include <gtest/gtest.h>

#include <cmath>

#include "plan/report/report.h"
#include "tests/support/layouts/toy_cluster.h"

namespace mcpp {
namespace {

constexpr double kHour = 3600;

RecoveryModel disk_only(double stall, i64 interval) {
  return {.step_seconds = 2,
          .nodes = 512,
          .node_mtbf_seconds = 512 * 4 * kHour,
          .restart_seconds = 120,
          .disk = {.interval = interval, .stall_seconds = stall, .write_seconds = stall}};
}

TEST(GoodputTest, AgreesWithDalyForCheckpointsOnDisks) {
  // 4096 devices, 8 per node: a failure every 4 hours. Daly (2006): the expected time of a segment with an interval of
  // work, a save and exponential failures.
  for (const i64 interval : {30, 300, 1500}) {
    const RecoveryModel model = disk_only(/*stall=*/10, interval);
    const double mean = 4 * kHour, work = model.step_seconds * static_cast<double>(interval), stall = 10;
    const double expected =
        work / (mean * std::exp(model.restart_seconds / mean) * (std::exp((work + stall) / mean) - 1));
    EXPECT_NEAR(simulate_goodput(model, 4000).fraction, expected, 0.01) << interval;
  }
}

// The loss that --mtbf_hours predicts by a formula, at the interval that it recommends.
TEST(GoodputTest, AgreesWithPredictedLossUpTo4096Ranks) {
  for (const double mtbf_hours : {10'000.0, 50'000.0}) {
    for (const i64 ranks : {64, 512, 1024, 4096}) {
      const Failures failures{.mtbf_hours = mtbf_hours, .save_seconds = 30, .restart_seconds = 300};
      const FailureLoss loss = failure_loss(failures, ranks);
      RecoveryModel model{.step_seconds = 2,
                          .nodes = ranks / 8,
                          .node_mtbf_seconds = kHour * mtbf_hours / 8,
                          .restart_seconds = failures.restart_seconds};
      model.disk = {.interval = std::llround(loss.interval_seconds / model.step_seconds),
                    .stall_seconds = failures.save_seconds,
                    .write_seconds = failures.save_seconds};
      EXPECT_NEAR(simulate_goodput(model, 4000).fraction, 1 - loss.lost_fraction, 0.01) << ranks << " " << mtbf_hours;
    }
  }
}

TEST(GoodputTest, LosesHalfAnIntervalPerFailure) {
  const Goodput goodput = simulate_goodput(disk_only(/*stall=*/0, 100), 4000);
  EXPECT_NEAR(goodput.lost_steps, 50, 3);
  EXPECT_EQ(goodput.failures, 4000);
  EXPECT_EQ(goodput.from_memory, 0);
}

TEST(GoodputTest, IsIndependentOfSkippedCycles) {
  // With an interval that no cycle fits before a failure, every step is simulated; both runs have the same failures.
  RecoveryModel model = disk_only(/*stall=*/0, 10);
  model.disk.write_seconds = 5;
  RecoveryModel unskipped = model;
  unskipped.memory = {.interval = 999'983, .stall_seconds = 0, .write_seconds = 0};  // a prime: one cycle never ends
  EXPECT_NEAR(simulate_goodput(model, 200).fraction, simulate_goodput(unskipped, 200).fraction, 1e-6);
}

TEST(GoodputTest, LosesLessWithCopiesInMemory) {
  RecoveryModel model = disk_only(/*stall=*/10, 300);
  const Goodput on_disks = simulate_goodput(model, 1000);
  model.memory = {.interval = 1, .stall_seconds = 0.05, .write_seconds = 1};
  const Goodput in_memory = simulate_goodput(model, 1000);
  EXPECT_GT(in_memory.from_memory, 950);
  EXPECT_LT(in_memory.lost_steps, 5);
  EXPECT_GT(on_disks.lost_steps, 100);
  model.memory.interval = 10;  // waits less, loses little
  EXPECT_GT(simulate_goodput(model, 1000).fraction, on_disks.fraction);
}

TEST(GoodputTest, FallsBackToDisksWithoutCopies) {
  RecoveryModel model = disk_only(/*stall=*/10, 300);
  model.memory = {.interval = 1, .stall_seconds = 0, .write_seconds = 0};
  model.replicas = 0;
  EXPECT_EQ(simulate_goodput(model, 500).from_memory, 0);  // the failed node had the only copy of its part
}

TEST(GoodputTest, CountsFailuresDuringRestart) {
  RecoveryModel model = disk_only(/*stall=*/0, 100);
  model.nodes = 4;
  model.node_mtbf_seconds = 4 * 100;  // a failure every 100 s, and restarts of 120 s
  model.memory = {.interval = 1, .stall_seconds = 0, .write_seconds = 1};
  const Goodput goodput = simulate_goodput(model, 2000);
  EXPECT_LT(goodput.fraction, 0.5);
  EXPECT_LT(goodput.from_memory, goodput.failures);  // several failures in one restart, some of neighbors
}

TEST(GoodputTest, ComparesTiersOfLayout) {
  const Hardware hardware = test::toy_cluster(300, 2.5);
  const Workload work = test::toy_workload(8, 4096, 32, 256);
  const PredictionInput input{hardware, KernelTraits(), work, {.tp = 8, .dp = 32, .zero_stage = 1}};
  const std::vector<GoodputPoint> points =
      goodput_by_interval(input, 5, {.mtbf_hours = 2000, .save_seconds = 30, .restart_seconds = 300});
  const bool has_memory = points.back().is_in_memory;
  EXPECT_EQ(has_memory, hardware.host.link_bandwidth > 0);
  const std::string text = goodput_text(points);
  EXPECT_NE(text.find("on disks"), text.npos);
  EXPECT_NE(text.find("best"), text.npos);
  for (const GoodputPoint& point : points) {
    EXPECT_GE(point.goodput.fraction, 0);
    EXPECT_LE(point.goodput.fraction, 1);
  }
}

}  // namespace
}  // namespace mcpp
