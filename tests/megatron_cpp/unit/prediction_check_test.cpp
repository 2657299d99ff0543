// Steps of a run compared with their prediction.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "megatron_cpp/monitor/rank_report.h"
#include "tests/support/layouts/toy_cluster.h"

namespace mcpp {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

TEST(PredictionCheckTest, NamesEachPartOnceWhenDeviationPersists) {
  const Hardware hardware = test::toy_cluster(100, 10);
  const Workload work = test::toy_workload(16, 2048, 16, 64);
  const KernelTraits program;
  const PredictedStep predicted = predict_step({hardware, program, work, {}}, 1e9);
  const double step = predicted.time.seconds;
  PredictionCheck check(predicted);
  const MeasuredRun expected{.seconds = step}, slow{.seconds = 1.5 * step};
  EXPECT_THAT(check.add(64, expected), IsEmpty());
  EXPECT_THAT(check.add(64, slow), IsEmpty());  // a single deviation may be chance
  EXPECT_THAT(check.add(64, slow),
              ElementsAre(HasSubstr("step is more than 20 % off: "), HasSubstr("compute is more than 20 % off: ")));
  EXPECT_THAT(check.add(64, slow), IsEmpty());
  EXPECT_THAT(check.add(32, slow), IsEmpty());  // a batch size without a prediction
  EXPECT_THAT(check.add(64, expected), IsEmpty());
  EXPECT_THAT(check.add(64, slow), IsEmpty());
  EXPECT_EQ(check.add(64, slow).size(), 2);
}

TEST(PredictionCheckTest, AveragesOverRanksAndIterations) {
  const std::vector<RankStats> ranks{{.peak_memory_bytes = 3, .bubble = 0.1, .compute_ms = 10},
                                     {.peak_memory_bytes = 5, .bubble = 0.3, .compute_ms = 30}};
  const std::vector<GroupSecondsByName> groups{{{"tp", {.seconds = 1}}},
                                               {{"tp", {.seconds = 3}}, {"dp", {.seconds = 4}}}};
  const MeasuredRun run = make_measured_run(0.5, ranks, groups, 10);
  EXPECT_EQ(run.seconds, 0.5);
  EXPECT_DOUBLE_EQ(run.bubble, 0.2);
  EXPECT_EQ(run.peak_memory_bytes, 5);
  EXPECT_THAT(run.computing_by_rank, ElementsAre(testing::DoubleEq(0.01), testing::DoubleEq(0.03)));
  EXPECT_DOUBLE_EQ(run.groups.at("tp"), 0.2);
  EXPECT_DOUBLE_EQ(run.groups.at("dp"), 0.2);
}

}  // namespace
}  // namespace mcpp
