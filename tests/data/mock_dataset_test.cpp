#include "data/dataset/mock_dataset.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>

namespace mcpp::mock_dataset_test {
namespace {

std::vector<i32> tokens_of(const MockDataset& dataset, i64 sample) {
  std::vector<i32> tokens(static_cast<std::size_t>(dataset.seq_length() + 1));
  dataset.at(sample, tokens);
  return tokens;
}

TEST(MockDatasetTest, SamplesAreConsecutive) {
  const MockText text{.seed = 7, .split_name = "train", .vocab_size = 50'000};
  const MockDataset some(text, 100, 32), more(text, 1000, 32), longer(text, 50, 64);
  for (const i64 sample : {0, 1, 57, 98}) {
    const std::vector<i32> tokens = tokens_of(some, sample);
    EXPECT_EQ(tokens.back(), tokens_of(some, sample + 1).front());
    EXPECT_EQ(tokens, tokens_of(more, sample)) << "samples do not depend on their number";
  }
  std::vector<i32> both = tokens_of(some, 2);
  const std::vector<i32> next = tokens_of(some, 3);
  both.insert(both.end(), next.begin() + 1, next.end());
  EXPECT_EQ(both, tokens_of(longer, 1));
}

TEST(MockDatasetTest, SeedsAndSplitsHaveDistinctTexts) {
  std::set<std::vector<i32>> texts;
  for (const i64 seed : {1, 2})
    for (const char* split : {"train", "valid", "test"})
      texts.insert(tokens_of(MockDataset({.seed = seed, .split_name = split, .vocab_size = 1000}, 1, 32), 0));
  EXPECT_EQ(texts.size(), 6u);
}

TEST(MockDatasetTest, EndsDocumentsAtExpectedRate) {
  constexpr i64 kVocab = 40, kEod = 3, kTokens = 400'000;
  const MockDataset dataset({.seed = 1, .split_name = "train", .vocab_size = kVocab, .eod = kEod}, 1, kTokens);
  std::vector<i64> counts(kVocab);
  for (const i32 token : tokens_of(dataset, 0)) ++counts.at(static_cast<std::size_t>(token));
  EXPECT_NEAR(static_cast<double>(counts[kEod]), kTokens / static_cast<double>(kMeanMockDocumentTokens), 80);
  for (i64 token = 0; token < kVocab; ++token) {
    if (token == kEod) continue;
    const double expected = kTokens / static_cast<double>(kVocab - 1);
    EXPECT_NEAR(static_cast<double>(counts[static_cast<std::size_t>(token)]), expected, 6 * std::sqrt(expected))
        << token;
  }
}

}  // namespace
}  // namespace mcpp::mock_dataset_test
