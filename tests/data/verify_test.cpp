#include "data/preprocess/verify.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/thread_pool.h"
#include "data/dataset/datasets.h"
#include "data/preprocess/indexed_writer.h"
#include "tests/data/data_golden.h"

namespace mcpp {
namespace {

using test::golden_data;
using test::input_error;
using testing::HasSubstr;

TEST(DataVerifyTest, SummarizesGoldenDatasets) {
  const DatasetSummary a = verify_dataset(golden_data() / "a", 257, Log(1));
  EXPECT_EQ(a.documents, 400);
  EXPECT_EQ(a.sequences, 400);
  EXPECT_EQ(a.largest_id, 256);
  EXPECT_FALSE(a.info.has_value());
  EXPECT_THAT(to_text(a), HasSubstr("uint16"));
  EXPECT_THAT(input_error([] { verify_dataset(golden_data() / "a", 256, Log(1)); }), HasSubstr("document 0, token"));
}

TEST(DataVerifyTest, AcceptsEmptyDataset) {
  const test::ScratchFolder folder;
  IndexedDatasetWriter(folder / "d", 100).finish();
  const DatasetSummary summary = verify_dataset(folder / "d", 100, Log(1));
  EXPECT_EQ(summary.documents, 0);
  EXPECT_EQ(summary.tokens, 0);
  EXPECT_THAT(to_text(summary), HasSubstr("0 documents"));
}

TEST(DataShowTest, NamesDocumentsAndOffsets) {
  const test::ScratchFolder folder;
  DataConfig config;
  config.data_path = {(golden_data() / "a").string()};
  config.split = "1";
  config.data_cache_path = folder.path().string();
  const Datasets datasets = build_train_valid_test_datasets(config, 64, 1234, {100, 0, 0}, Log(1));
  const IndexedDataset source(golden_data() / "a");
  const auto views = show_batch(*datasets.train, 40, 8, nullptr);
  ASSERT_EQ(views.size(), 8u);
  for (std::size_t i = 0; i < views.size(); ++i) {
    EXPECT_EQ(views[i].sample, 40 + static_cast<i64>(i));
    std::vector<i32> tokens;
    for (const SamplePart& part : views[i].origin.parts) {
      std::vector<i32> chunk(static_cast<std::size_t>(part.length));
      source.read(part.sequence, part.offset, chunk);
      tokens.insert(tokens.end(), chunk.begin(), chunk.end());
      EXPECT_THAT(to_text(views[i]), HasSubstr(str("document ", part.document, ", tokens ", part.offset, " to ")));
    }
    EXPECT_EQ(tokens, views[i].tokens);
  }
  EXPECT_THAT(input_error([&] { show_sample(*datasets.train, datasets.train->size(), nullptr); }),
              HasSubstr("is not in the dataset"));
}

TEST(OrderedParallelTest, KeepsOrderAndFirstError) {
  for (const i64 workers : {1, 3}) {
    for (const int failing : {1000, 17}) {
      int next = 0;
      std::vector<int> results;
      const auto run = [&] {
        ordered_parallel(
            workers, [&] { return next < 100 ? std::optional<int>(next++) : std::nullopt; },
            [&](int i) {
              if (i >= failing) fail(ExitCode::BadInput, "item ", i);
              return 2 * i;
            },
            [&](int result) { results.push_back(result); });
      };
      EXPECT_EQ(input_error(run), failing == 17 ? "item 17" : "");
      ASSERT_EQ(results.size(), failing == 17 ? 17u : 100u);
      for (std::size_t i = 0; i < results.size(); ++i) EXPECT_EQ(results[i], 2 * static_cast<int>(i));
    }
  }
}

TEST(OrderedParallelTest, DeliversItemsBeforeProducerError) {
  std::vector<int> results;
  int next = 0;
  const auto produce = [&]() -> std::optional<int> {
    if (next == 5) fail(ExitCode::BadInput, "no more");
    return next++;
  };
  EXPECT_EQ(input_error([&] {
              ordered_parallel(
                  2, produce, [](int i) { return i; }, [&](int i) { results.push_back(i); });
            }),
            "no more");
  EXPECT_EQ(results, (std::vector<int>{0, 1, 2, 3, 4}));
}

}  // namespace
}  // namespace mcpp
