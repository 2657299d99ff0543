#include <gtest/gtest.h>

#include <cmath>

#include "plan/scaling/training_cost.h"
#include "tests/support/layouts/toy_cluster.h"

namespace mcpp {
namespace {

TEST(FailuresTest, IntervalFollowsYoung) {
  // 1000 devices that fail every 50,000 hours: one failure in 50 hours.
  const FailureLoss loss = failure_loss({.mtbf_hours = 50'000, .save_seconds = 60, .restart_seconds = 600}, 1000);
  const double between = 50 * 3600;
  EXPECT_NEAR(loss.failures_per_day, 24.0 / 50, 1e-12);
  EXPECT_NEAR(loss.interval_seconds, std::sqrt(2 * 60 * between), 1e-9);
  // To first order: time of saves, plus half an interval with its save and the restart for each failure.
  const double interval = loss.interval_seconds;
  EXPECT_NEAR(loss.lost_fraction, 60 / (interval + 60) + ((interval + 60) / 2 + 600) / between, 1e-3);
  const double immediate = failure_loss({.mtbf_hours = 50'000, .restart_seconds = 600}, 1000).lost_fraction;
  EXPECT_NEAR(immediate, 600 / between, 1e-5) << "saves take no time";
  EXPECT_EQ(failure_loss({.mtbf_hours = 1, .save_seconds = 60, .restart_seconds = 600}, 1000).lost_fraction, 1);
  // No other interval loses less.
  const auto lost_fraction = [&](double every) { return 60 / every + every / 2 / between; };
  EXPECT_LT(lost_fraction(interval), lost_fraction(0.9 * interval));
  EXPECT_LT(lost_fraction(interval), lost_fraction(1.1 * interval));
}

TEST(UpgradeGainsTest, SortBottlenecksFirst) {
  const Hardware hardware = test::toy_cluster(300, 2.5);
  const Workload work = test::toy_workload(8, 4096, 32, 16);
  const KernelTraits program;
  const auto best = [&](const Layout& layout) {
    return upgrade_gains({hardware, program, work, layout}).front().change;
  };
  EXPECT_EQ(best({}), "twice the GEMMs per second");
  EXPECT_EQ(best({.tp = 16}), "twice the bandwidth of inter_node");
  for (const Speedup& gain : upgrade_gains({hardware, program, work, {.tp = 8}})) {
    EXPECT_GE(gain.fraction, 0) << gain.change;
    EXPECT_NE(gain.change, "twice the bandwidth of inter_node");  // eight ranks do not use inter-node links
  }
}

TEST(UpgradeGainsTest, IncludeLinksAndDisksWhenOffloading) {
  Hardware hardware = test::toy_cluster(300, 2.5);
  hardware.host = {.memory = 100, .memory_bandwidth = 50, .link_bandwidth = 10, .nvme_bandwidth = 0.1};
  const Workload work = test::toy_workload(8, 4096, 32, 16);
  const KernelTraits program;
  const auto best = [&](OffloadTier tier) {
    return upgrade_gains({hardware, program, work, {.activations_tier = tier}}).front().change;
  };
  EXPECT_EQ(best(OffloadTier::Host), "twice the bandwidth between device and host");
  EXPECT_EQ(best(OffloadTier::File), "twice the bandwidth of local disks");
}

}  // namespace
}  // namespace mcpp
