// Ranks that share fewer cores than there are ranks.
#include <gtest/gtest.h>

#include "parallel/pp/schedule.h"
#include "parallel/pp/schedule_kind.h"
#include "parallel/pp/simulate.h"
#include "plan/step/step_time.h"
#include "tests/support/layouts/toy_cluster.h"

namespace mcpp {
namespace {

Schedule lowered(ScheduleKind kind, int ranks, int microbatches, int chunks) {
  return lower(make_schedule(kind, ranks, microbatches, chunks));
}

struct Row {
  ScheduleKind kind;
  int chunks;
};
const Row kRows[]{
    {ScheduleKind::OneFOneB, 1}, {ScheduleKind::Interleaved, 2}, {ScheduleKind::ZbH1, 1}, {ScheduleKind::ZbV, 2}};

/// Stages of different speed, with messages that take time.
std::vector<ScheduleCosts> uneven_costs(int stages) {
  std::vector<ScheduleCosts> costs;
  for (int stage = 0; stage < stages; ++stage)
    costs.push_back({.forward = 1 + 0.1 * stage, .backward_input = 1.3, .backward_weight = 0.9, .message = 0.25});
  return costs;
}

TEST(OversubscribedSimulationTest, OneCorePerRankMatchesSimulation) {
  for (const auto& [kind, chunks] : kRows) {
    const Schedule schedule = lowered(kind, 4, 8, chunks);
    const std::vector<ScheduleCosts> costs = uneven_costs(schedule.stages());
    EXPECT_NEAR(oversubscribed_makespan(schedule, costs, 4), simulate(schedule, costs).makespan, 1e-9)
        << enum_name(kind);
  }
}

TEST(OversubscribedSimulationTest, SingleCoreTakesSumOfAllWork) {
  for (const auto& [kind, chunks] : kRows) {
    const Schedule schedule = lowered(kind, 4, 8, chunks);
    std::vector<ScheduleCosts> costs = uneven_costs(schedule.stages());
    for (ScheduleCosts& cost : costs) cost.message = 0;
    const Timeline timeline = simulate(schedule, costs);
    double work = 0;
    for (const double busy : timeline.busy) work += busy;
    EXPECT_NEAR(oversubscribed_makespan(schedule, costs, 1), work, 1e-9) << enum_name(kind);
    // Two cores lie between the two; waiting ranks use none.
    const double two = oversubscribed_makespan(schedule, costs, 2);
    EXPECT_GE(two, std::max(work / 2, timeline.makespan) - 1e-9) << enum_name(kind);
    EXPECT_LT(two, work) << enum_name(kind);
  }
}

TEST(OversubscribedSimulationTest, TwoRanksMatchHandComputedTime) {
  // One microbatch: forward 0, forward 1, backward 1, backward 0, sequentially, without sharing.
  const Schedule schedule = lowered(ScheduleKind::OneFOneB, 2, 1, 1);
  const ScheduleCosts costs{.forward = 1, .backward_input = 1, .backward_weight = 1, .message = 0.5};
  EXPECT_NEAR(oversubscribed_makespan(schedule, {&costs, 1}, 1), 7, 1e-12);
  // Half a core each if it represents two ranks.
  EXPECT_NEAR(oversubscribed_makespan(schedule, {&costs, 1}, 0.5), 13, 1e-12);
}

TEST(OversubscribedSimulationTest, StepSlowsDownByRanksPerCore) {
  Hardware own = test::toy_cluster(1e12, 1e12);
  own.device.cores = 1;
  Hardware shared = own;
  shared.host.cores = 4;
  const KernelTraits program;
  const Workload work = test::toy_workload(16, 2048, 16, 64);
  for (const Layout& layout : {Layout{.dp = 8}, Layout{.tp = 2, .dp = 4}, Layout{.tp = 2, .pp = 4}, Layout{.pp = 8}}) {
    const StepTime alone = step_time({own, program, work, layout}),
                   shared_time = step_time({shared, program, work, layout});
    // Other ranks use the bubble, so that a pipeline loses less than a factor of two.
    EXPECT_LT(shared_time.seconds, 2.001 * alone.seconds) << layout.describe();
    EXPECT_GT(shared_time.seconds, (layout.pp == 1 ? 1.95 : 1.3) * alone.seconds) << layout.describe();
    EXPECT_GT(shared_time.core_wait, 0) << layout.describe();
    EXPECT_NEAR(shared_time.seconds,
                shared_time.work.total() + shared_time.core_wait + shared_time.bubble + shared_time.messages +
                    shared_time.data_parallel + shared_time.optimizer,
                1e-9);
    EXPECT_LE(step_time_lower_bound({shared, program, work, layout}), shared_time.seconds) << layout.describe();
  }
  // One core per rank: nothing changes.
  shared.host.cores = 8;
  EXPECT_EQ(step_time({shared, program, work, {.pp = 2, .dp = 4}}).seconds,
            step_time({own, program, work, {.pp = 2, .dp = 4}}).seconds);
}

}  // namespace
}  // namespace mcpp
