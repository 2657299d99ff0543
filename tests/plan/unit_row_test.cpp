// What passes through a row of units wait for as weights come and gradients go.
#include "plan/step/unit_row.h"

#include <gtest/gtest.h>

#include "tests/support/layouts/toy_cluster.h"

namespace mcpp::unit_row_test {
namespace {

class Row : public testing::Test {
 protected:
  Row() : hardware_(test::toy_cluster(100, 100)), work_(test::toy_workload(16, 2048, 16, 32)) {}

  RowWaits waits(const std::vector<RowUnit>& row) const {
    const Job job{hardware_, program_, work_, {.world_size = 8, .zero_stage = 3}};
    return waits_of(row, WeightTraffic(job));
  }
  /// Computes for 10 seconds forward and 20 backward.
  static RowUnit unit(double gather, double sums) {
    const Transfer weights{.links = gather};
    return {.forward = 10,
            .backward = 20,
            .traffic = {.first = weights, .forward = weights, .backward = weights, .sums = {.links = sums}}};
  }

  Hardware hardware_;
  Workload work_;
  Implementation program_;
};

// What is quicker than the units compute costs only at the ends: the first weights of each pass, the last gradients of
// a step.
TEST_F(Row, TheEndsWait) {
  const RowWaits w = waits({unit(3, 5), unit(4, 5), unit(6, 7)});
  EXPECT_NEAR(w.forward, 3, 1e-12);
  EXPECT_NEAR(w.backward, 6, 1e-12);
  EXPECT_NEAR(w.ends, 5, 1e-12);
}

TEST_F(Row, WhatIsSlowerThanAUnitIsLeftOver) {
  // Forward: 3, then 12 beside 10, then 6 beside 10. Backward: 6; 12 beside 20; 3 and the last unit's 30 beside 20;
  // beside the first unit the 5 of the second. Its own go beside the next forward pass, of which the gathers leave 9.
  const RowWaits w = waits({unit(3, 11), unit(12, 5), unit(6, 30)});
  EXPECT_NEAR(w.forward, 3 + 2 + (11 - 9), 1e-12);
  EXPECT_NEAR(w.backward, 6 + 13, 1e-12);
  EXPECT_NEAR(w.ends, 9, 1e-12);
}

TEST_F(Row, WhatIsAskedForLateIsWaitedFor) {
  std::vector<RowUnit> row{unit(3, 0), unit(4, 0), unit(6, 0)};
  row[2].traffic.is_ahead = false;
  EXPECT_NEAR(waits(row).forward, 3 + 6, 1e-12);
}

// The first pass has weights from farther away.
TEST_F(Row, TheFirstPassMayTakeLonger) {
  std::vector<RowUnit> row{unit(3, 0), unit(4, 0)};
  for (RowUnit& u : row) u.traffic.first.links = 15;
  const RowWaits w = waits(row);
  EXPECT_NEAR(w.forward, 3, 1e-12);
  EXPECT_NEAR(w.ends, 15 + 5 - 3, 1e-12);
}

TEST_F(Row, AProgramThatHidesNothingWaitsForAll) {
  program_.overlaps_data_parallel = false;
  const RowWaits w = waits({unit(3, 5), unit(4, 5), unit(6, 7)});
  EXPECT_NEAR(w.forward + w.backward + w.ends, 2 * (3 + 4 + 6) + 5 + 5 + 7, 1e-12);
  EXPECT_NEAR(w.ends, 0, 1e-12);
  EXPECT_NEAR(waits({}).forward, 0, 1e-12);
}

}  // namespace
}  // namespace mcpp::unit_row_test
