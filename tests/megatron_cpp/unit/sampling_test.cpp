#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <vector>

#include "megatron_cpp/inference/generation.h"

namespace mcpp {
namespace {

const std::vector<float> kLogits{1.0f, 3.0f, 2.0f, 3.0f, -1.0f};

std::vector<double> frequencies(const SamplingOptions& options, int draws) {
  std::vector<double> counts(kLogits.size());
  for (int i = 0; i < draws; ++i) counts[sample_token(kLogits, options, i)] += 1.0 / draws;
  return counts;
}

TEST(SampleTokenTest, TemperatureZeroSelectsLowestOfMostLikelyTokens) {
  EXPECT_EQ(sample_token(kLogits, {.temperature = 0}, 7), 1);
}

TEST(SampleTokenTest, FollowsSoftmax) {
  const std::vector<double> counts = frequencies({.temperature = 2}, 40000);
  double total = 0;
  for (float logit : kLogits) total += std::exp(logit / 2);
  for (std::size_t i = 0; i < kLogits.size(); ++i) EXPECT_NEAR(counts[i], std::exp(kLogits[i] / 2) / total, 0.01) << i;
}

TEST(SampleTokenTest, TopKAndTopPDropUnlikelyTokens) {
  const std::vector<double> two = frequencies({.temperature = 1, .top_k = 2}, 4000);
  EXPECT_EQ(two[0] + two[2] + two[4], 0);
  EXPECT_NEAR(two[1], 0.5, 0.05);
  // The two most likely have a probability of 0.39 each; 0.5 needs both, but no third.
  const std::vector<double> nucleus = frequencies({.temperature = 1, .top_p = 0.5}, 4000);
  EXPECT_EQ(nucleus[0] + nucleus[2] + nucleus[4], 0);
  EXPECT_GT(nucleus[3], 0.4);
}

TEST(SampleTokenTest, DependsOnlyOnSeedAndDraw) {
  for (u64 draw = 0; draw < 20; ++draw) {
    EXPECT_EQ(sample_token(kLogits, {.seed = 5}, draw), sample_token(kLogits, {.seed = 5}, draw));
  }
  std::set<std::vector<i32>> runs;
  for (i64 seed = 0; seed < 5; ++seed) {
    std::vector<i32> run;
    for (u64 draw = 0; draw < 30; ++draw) run.push_back(sample_token(kLogits, {.seed = seed}, draw));
    runs.insert(run);
  }
  EXPECT_EQ(runs.size(), 5u);
}

}  // namespace
}  // namespace mcpp
