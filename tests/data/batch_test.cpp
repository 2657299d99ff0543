#include "data/dataset/batch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <set>
#include <type_traits>

#include "data/dataset/gpt_dataset.h"
#include "data/dataset/sampler.h"
#include "data/preprocess/indexed_writer.h"
#include "tests/data/data_golden.h"

namespace mcpp {
namespace {

using test::input_error;
using testing::HasSubstr;

TEST(SamplerTest, GlobalBatchIsIndependentOfLayout) {
  const i64 global_batch = 24;
  for (const i64 consumed : {0, 24, 1000}) {
    for (const i64 micro : {1, 2, 3, 4}) {
      for (const i64 dp : {1, 2, 3, 6}) {
        if (global_batch % (micro * dp) != 0) continue;
        std::multiset<i64> seen;
        for (i64 rank = 0; rank < dp; ++rank) {
          const SamplerLayout layout{micro, dp, rank};
          const i64 count = num_micro_batches(global_batch, layout);
          for (i64 m = 0; m < count; ++m) {
            const auto samples = micro_batch_samples(consumed, m, layout);
            EXPECT_EQ(samples[0], consumed + m * micro * dp + rank * micro);
            seen.insert(samples.begin(), samples.end());
          }
        }
        const auto expected = global_batch_samples(consumed, global_batch);
        EXPECT_TRUE(std::equal(seen.begin(), seen.end(), expected.begin(), expected.end()));
      }
    }
  }
  EXPECT_THAT(input_error([] { num_micro_batches(10, {2, 3, 0}); }), HasSubstr("next multiple is 12"));
}

/// Sample i consists of the seq_length + 1 tokens i, i + 1, and so on. Sample 13 throws.
class CountingDataset : public Dataset {
 public:
  i64 size() const override { return 100; }
  i64 seq_length() const override { return 4; }
  void read(i64 sample, std::span<i32> tokens, std::span<u8> targets) const override {
    for (i32 i = 0; i < 5; ++i) tokens[static_cast<std::size_t>(i)] = static_cast<i32>(sample) + i;
    for (u8& is_target : targets) is_target = 1;
    if (sample == 13) throw std::runtime_error("sample 13");
  }
  SampleOrigin origin(i64) const override { return {}; }
};

Prefetcher::NextSamples counter(i64 end) {
  return [next = i64{0}, end]() mutable {
    if (next >= end) return std::vector<i64>{};
    next += 2;
    return std::vector<i64>{next - 2, next - 1};
  };
}

/// A reader of data keeps references, so its arguments must not be temporaries.
static_assert(std::is_constructible_v<Prefetcher, const GptDataset&, i64, Prefetcher::NextSamples, i64>);
static_assert(!std::is_constructible_v<Prefetcher, GptDataset, i64, Prefetcher::NextSamples, i64>);
static_assert(!std::is_constructible_v<GptDataset, IndexedDataset, const GptDatasetSpec&, const Path&, const Log&>);

TEST(PrefetcherTest, DeliversInOrderWithAndWithoutThread) {
  const CountingDataset dataset;
  for (const i64 depth : {0, 1, 2, 7}) {
    Prefetcher batches(dataset, 1000, counter(12), depth);
    for (i64 i = 0; i < 6; ++i) {
      const Batch batch = batches.next();
      EXPECT_EQ(batch.samples, (std::vector<i64>{2 * i, 2 * i + 1}));
      EXPECT_EQ(batch.tokens[4], 2 * i + 1);
      EXPECT_EQ(batch.labels[4], 2 * i + 2);
      EXPECT_EQ(batch.labels[3], 2 * i + 4);
    }
    EXPECT_EQ(batches.next().batch_size, 0);
    EXPECT_EQ(batches.next().batch_size, 0);
  }
}

TEST(PrefetcherTest, ThrowsAtPositionOfFailedBatch) {
  const CountingDataset dataset;
  for (const i64 depth : {0, 3}) {
    Prefetcher batches(dataset, 1000, counter(100), depth);
    for (int i = 0; i < 6; ++i) EXPECT_EQ(batches.next().batch_size, 2);
    EXPECT_THROW(batches.next(), std::runtime_error);
  }
}

TEST(PrefetcherTest, ReadsAheadOnlyUpToDepthAndStops) {
  const CountingDataset dataset;
  std::atomic<int> requested = 0;
  {
    Prefetcher batches(
        dataset, 1000, [&] { return ++requested, std::vector<i64>{0}; }, 3);
    batches.next();
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    EXPECT_LE(requested.load(), 5);  // one consumed, three ready, one in progress
  }
}

TEST(BatchTest, FutureTokensStayInSample) {
  const Batch batch{.batch_size = 2,
                    .seq_length = 4,
                    .tokens = {1, 2, 3, 4, 5, 6, 7, 8},
                    .labels = {2, 3, -1, 5, 6, 7, 8, 9},
                    .samples = {0, 1}};
  const FutureBatch next = future_batch(batch, 1, {});
  EXPECT_THAT(next.tokens, testing::ElementsAre(2, 3, 4, 0, 6, 7, 8, 0));
  EXPECT_THAT(next.labels, testing::ElementsAre(3, -1, 5, -1, 7, 8, 9, -1));
  const FutureBatch third = future_batch(batch, 3, {});
  EXPECT_THAT(third.tokens, testing::ElementsAre(4, 0, 0, 0, 8, 0, 0, 0));
  EXPECT_THAT(third.labels, testing::ElementsAre(5, -1, -1, -1, 9, -1, -1, -1));
}

TEST(BatchTest, FutureTokensStayInDocument) {
  const Batch batch{
      .batch_size = 1, .seq_length = 5, .tokens = {4, 9, 5, 6, 9}, .labels = {9, 5, 6, 9, 1}, .samples = {0}};
  const std::vector<i32> starts = document_starts(batch, /*eod=*/9);
  const FutureBatch next = future_batch(batch, 1, starts);
  EXPECT_THAT(next.tokens, testing::ElementsAre(9, 0, 6, 9, 0));
  EXPECT_THAT(next.labels, testing::ElementsAre(5, -1, 9, 1, -1));
}

TEST(BatchTest, ReportsInvalidTokensAndSamples) {
  const test::ScratchFolder folder;
  IndexedDatasetWriter writer(folder / "d", 1000);
  for (int i = 0; i < 5; ++i) writer.add_document(std::vector<i32>{1, 2, 3, 4, 5, 6, 7});
  writer.add_document(std::vector<i32>{1, 2, 999, 3, 4, 5, 6, 7});
  writer.finish();
  const IndexedDataset source(folder / "d");
  const GptDataset dataset(source, {{0, 6}, "train", 4, 1, {}}, folder / "cache", Log(1));
  const auto all = global_batch_samples(0, dataset.size());
  const std::string error = input_error([&] { read_batch(dataset, all, 999); });
  EXPECT_THAT(error, HasSubstr("document 5 (sequence 5), token 2: id 999"));
  EXPECT_THAT(error, HasSubstr((folder / "d").string()));
  EXPECT_EQ(read_batch(dataset, all, 1000).batch_size, dataset.size());
  EXPECT_THAT(input_error([&] { read_batch(dataset, std::vector<i64>{1000}, 1000); }), HasSubstr("beyond the end"));
}

}  // namespace
}  // namespace mcpp
