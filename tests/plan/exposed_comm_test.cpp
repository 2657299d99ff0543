// Exposed communication of passes through a row of units while weights are gathered and gradients reduced.
#include <gtest/gtest.h>

#include "plan/step/weight_traffic.h"
#include "tests/support/layouts/toy_cluster.h"

namespace mcpp::unit_row_test {
namespace {

class ExposedCommTest : public testing::Test {
 protected:
  ExposedCommTest() : hardware_(test::toy_cluster(100, 100)), work_(test::toy_workload(16, 2048, 16, 32)) {}

  ExposedComm waits(const std::vector<UnitCost>& row) const {
    const PredictionInput input{hardware_, program_, work_, {.dp = 8, .zero_stage = 3}};
    return exposed_comm(row, WeightTraffic(input));
  }
  /// A unit that computes for 10 seconds in forward and 20 in backward.
  static UnitCost unit(double gather, double sums) {
    const Transfer weights{.links = gather};
    return {.forward = 10,
            .backward = 20,
            .traffic = {.first = weights, .forward = weights, .backward = weights, .reduction = {.links = sums}}};
  }

  Hardware hardware_;
  Workload work_;
  KernelTraits program_;
};

// Communication faster than compute is exposed only at the ends: the first weights of each pass and the last gradients
// of a step.
TEST_F(ExposedCommTest, ExposesOnlyEndsWhenCommunicationIsFaster) {
  const ExposedComm w = waits({unit(3, 5), unit(4, 5), unit(6, 7)});
  EXPECT_NEAR(w.forward, 3, 1e-12);
  EXPECT_NEAR(w.backward, 6, 1e-12);
  EXPECT_NEAR(w.boundary_exposed, 5, 1e-12);
}

TEST_F(ExposedCommTest, ExposesRemainderOfSlowUnits) {
  // Forward: 3, then 12 during 10, then 6 during 10. Backward: 6; 12 during 20; 3 and the 30 of the last unit during
  // 20; the 5 of the second during the first. Its own overlap with the next forward pass, of which the gathers leave 9.
  const ExposedComm w = waits({unit(3, 11), unit(12, 5), unit(6, 30)});
  EXPECT_NEAR(w.forward, 3 + 2 + (11 - 9), 1e-12);
  EXPECT_NEAR(w.backward, 6 + 13, 1e-12);
  EXPECT_NEAR(w.boundary_exposed, 9, 1e-12);
}

TEST_F(ExposedCommTest, ExposesGathersThatAreNotPrefetched) {
  std::vector<UnitCost> row{unit(3, 0), unit(4, 0), unit(6, 0)};
  row[2].traffic.can_prefetch = false;
  EXPECT_NEAR(waits(row).forward, 3 + 6, 1e-12);
}

// The first pass fetches its weights over slower links.
TEST_F(ExposedCommTest, FirstPassMayTakeLonger) {
  std::vector<UnitCost> row{unit(3, 0), unit(4, 0)};
  for (UnitCost& u : row) u.traffic.first.links = 15;
  const ExposedComm w = waits(row);
  EXPECT_NEAR(w.forward, 3, 1e-12);
  EXPECT_NEAR(w.boundary_exposed, 15 + 5 - 3, 1e-12);
}

TEST_F(ExposedCommTest, ExposesEverythingWithoutOverlap) {
  program_.overlaps_data_parallel = false;
  const ExposedComm w = waits({unit(3, 5), unit(4, 5), unit(6, 7)});
  EXPECT_NEAR(w.forward + w.backward + w.boundary_exposed, 2 * (3 + 4 + 6) + 5 + 5 + 7, 1e-12);
  EXPECT_NEAR(w.boundary_exposed, 0, 1e-12);
  EXPECT_NEAR(waits({}).forward, 0, 1e-12);
}

}  // namespace
}  // namespace mcpp::unit_row_test
