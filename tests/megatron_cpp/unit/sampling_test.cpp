#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
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

/// A vocabulary of which only a few tokens are sorted gives the same tokens as one that is sorted completely.
TEST(SampleTokenTest, ReadsFewTokensOfLargeVocabularyInOrder) {
  std::vector<float> logits(5000);
  for (std::size_t i = 0; i < logits.size(); ++i) logits[i] = static_cast<float>((i * 7919) % 1000) / 100;
  std::vector<i32> sorted(logits.size());
  std::iota(sorted.begin(), sorted.end(), 0);
  std::ranges::stable_sort(sorted, std::greater<>(), [&](i32 token) { return logits[token]; });
  std::vector<float> in_order;
  for (const i32 token : sorted) in_order.push_back(logits[token]);
  for (const SamplingOptions& options :
       {SamplingOptions{.temperature = 1.5}, SamplingOptions{.top_k = 40}, SamplingOptions{.top_p = 0.7},
        SamplingOptions{.temperature = 0}, SamplingOptions{.top_k = 9000, .top_p = 0.5}}) {
    for (u64 draw = 0; draw < 200; ++draw)
      ASSERT_EQ(sample_token(logits, options, draw), sorted[sample_token(in_order, options, draw)]) << draw;
  }
}

TEST(DraftTokensTest, RepeatsLatestLongestMatch) {
  using Tokens = std::vector<i32>;
  const auto draft = [](const Tokens& tokens, i64 count, i64 lookup_max = 3) {
    return draft_tokens(tokens, {.num_speculative_tokens = count, .prompt_lookup_max = lookup_max}, count);
  };
  EXPECT_EQ(draft({1, 2, 3, 4, 9, 2, 3}, 2), (Tokens{4, 9}));
  EXPECT_EQ(draft({1, 2, 3, 4, 9, 2, 3}, 10), (Tokens{4, 9, 2, 3})) << "up to the end of the text";
  EXPECT_EQ(draft({1, 2, 5, 7, 2, 6, 1, 2}, 1), Tokens{5}) << "two tokens match better than one";
  EXPECT_EQ(draft({1, 2, 5, 7, 2, 6, 1, 2}, 1, 1), Tokens{6}) << "the latest match of one token";
  EXPECT_EQ(draft({1, 2, 3}, 4), Tokens{});
  EXPECT_EQ(draft({1}, 4), Tokens{});
  EXPECT_EQ(draft({}, 4), Tokens{});
  EXPECT_EQ(draft({5, 5}, 4), Tokens{5});
}

}  // namespace
}  // namespace mcpp
