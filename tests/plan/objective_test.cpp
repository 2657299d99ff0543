// Cost of a training run, and choice of the best number of ranks for an objective.
#include <gtest/gtest.h>

#include <cmath>

#include "plan/scaling/scaling.h"
#include "plan/scaling/training_cost.h"
#include "plan/search.h"
#include "tests/support/layouts/toy_cluster.h"

namespace mcpp {
namespace {

ScalingPoint point(i64 ranks, double hours, double memory_bytes) {
  ScalingPoint p{.world_size = ranks, .search = {}};
  MemoryEstimate memory;
  memory.params = memory_bytes;
  p.search.best.push_back({.layout = {.dp = ranks}, .time = {}, .memory = memory});
  p.cost = {.hours = hours, .device_hours = hours * static_cast<double>(ranks)};
  return p;
}

/// Nothing fits on four ranks; device hours are 40, 24, 32, 30.4.
std::vector<ScalingPoint> points() {
  return {point(2, 20, 9e9), ScalingPoint{.world_size = 4, .search = {}}, point(8, 3, 7e9), point(16, 2, 8e9),
          point(19, 1.6, 7e9)};
}

i64 best(Objective objective, double deadline_hours = 0) {
  const std::vector<ScalingPoint> all = points();
  const ScalingPoint* found = best_point(all, objective, deadline_hours);
  return found == nullptr ? 0 : found->world_size;
}

TEST(BestPointTest, FollowsObjective) {
  EXPECT_EQ(best(Objective::Time), 19);
  EXPECT_EQ(best(Objective::Memory), 19);  // as little as eight ranks, and faster
  EXPECT_EQ(best(Objective::DeviceHours), 8);
  EXPECT_EQ(best(Objective::Deadline, 25), 2);
}

TEST(BestPointTest, MeetsDeadline) {
  EXPECT_EQ(best(Objective::Deadline, 20), 2);  // exactly at the deadline
  EXPECT_EQ(best(Objective::Deadline, 19.9), 8);
  EXPECT_EQ(best(Objective::DeviceHours, 2.5), 19);
  EXPECT_EQ(best(Objective::DeviceHours, 1.6), 19);
  EXPECT_EQ(best(Objective::Memory, 1.5), 0);
  EXPECT_EQ(best_point({ScalingPoint{.world_size = 4, .search = {}}}, Objective::Time, 0), nullptr);
  EXPECT_EQ(best_point({}, Objective::Time, 0), nullptr);
}

TEST(TrainingCostTest, MatchesHandComputedValues) {
  const Hardware hardware = test::toy_cluster(300, 2.5);
  const Workload work = test::toy_workload(8, 4096, 32, 16);
  const KernelTraits program;
  const PredictionInput input{hardware, program, work, {.dp = 4}};
  const double steps = 25, tokens = steps * 16 * 2048;
  const TrainingCost cost = training_cost(input, 7.2, tokens, {});
  EXPECT_NEAR(cost.hours, steps * 7.2 / 3600, 1e-12);
  EXPECT_NEAR(cost.device_hours, 4 * cost.hours, 1e-12);
}

/// The duration of untimed checkpoints is predicted, and a run that always fails never ends.
TEST(TrainingCostTest, GrowsWithFailures) {
  Hardware hardware = test::toy_cluster(300, 2.5);
  hardware.host.nvme_bandwidth = 2;
  const Workload work = test::toy_workload(8, 4096, 32, 16);
  const KernelTraits program;
  const PredictionInput input{hardware, program, work, {.dp = 4}};
  const double tokens = 100 * work.tokens();
  const Failures failures{.mtbf_hours = 400, .save_seconds = 0, .restart_seconds = 60};
  Failures timed = failures;
  timed.save_seconds = save_time(input).seconds;
  ASSERT_GT(timed.save_seconds, 0);
  const double plain = training_cost(input, 7.2, tokens, {}).hours,
               lost_fraction = failure_loss(timed, 4).lost_fraction;
  EXPECT_NEAR(training_cost(input, 7.2, tokens, failures).hours, plain / (1 - lost_fraction), 1e-9 * plain);
  EXPECT_NEAR(training_cost(input, 7.2, tokens, timed).hours, plain / (1 - lost_fraction), 1e-9 * plain);
  EXPECT_TRUE(std::isinf(training_cost(input, 7.2, tokens, {.mtbf_hours = 0.01, .restart_seconds = 1e6}).hours));
}

}  // namespace
}  // namespace mcpp
