#include "base/statistics.h"

#include <gtest/gtest.h>

#include <cmath>

namespace mcpp {
namespace {

TEST(StatisticsTest, EstimatesMeanAndItsStandardError) {
  // Sample standard deviation sqrt(32 / 7), by hand.
  const MeanEstimate estimate = estimate_mean(std::vector<double>{2, 4, 4, 4, 5, 5, 7, 9});
  EXPECT_EQ(estimate.count, 8);
  EXPECT_DOUBLE_EQ(estimate.mean, 5);
  EXPECT_DOUBLE_EQ(estimate.standard_error, std::sqrt(32.0 / 7 / 8));
  EXPECT_NEAR(estimate.half_interval(), 2.36462 * 0.755929, 2e-3);
}

TEST(StatisticsTest, KeepsSmallDeviationsFromLargeMeans) {
  const MeanEstimate estimate = estimate_mean(std::vector<double>{1e9 + 1, 1e9 + 2, 1e9 + 3});
  EXPECT_DOUBLE_EQ(estimate.standard_error, std::sqrt(1.0 / 3));
}

TEST(StatisticsTest, HasInfiniteErrorForSingleValue) {
  const MeanEstimate estimate = estimate_mean(std::vector<double>{0.25});
  EXPECT_EQ(estimate.mean, 0.25);
  EXPECT_TRUE(std::isinf(estimate.standard_error));
  EXPECT_TRUE(std::isinf(estimate.half_interval()));
}

TEST(StatisticsTest, HasZeroErrorForEqualValues) {
  const MeanEstimate estimate = estimate_mean(std::vector<double>{0, 0, 0});
  EXPECT_EQ(estimate.mean, 0);
  EXPECT_EQ(estimate.standard_error, 0);
}

TEST(StatisticsTest, ApproximatesQuantilesOfStudentsDistribution) {
  // Published tables of the t distribution, two-sided 5 %.
  const std::pair<i64, double> table[]{{1, 12.706}, {2, 4.303},  {3, 3.182},  {4, 2.776},   {5, 2.571},
                                       {6, 2.447},  {7, 2.365},  {8, 2.306},  {10, 2.228},  {15, 2.131},
                                       {20, 2.086}, {30, 2.042}, {60, 2.000}, {120, 1.980}, {1000, 1.962}};
  for (const auto& [degrees, quantile] : table)
    EXPECT_NEAR(student_t_quantile_975(degrees) / quantile, 1, 1e-3) << degrees;
}

}  // namespace
}  // namespace mcpp
