#include <gtest/gtest.h>

#include "data/dataset/batch.h"
#include "data/dataset/dataset_info.h"
#include "tests/support/errors.h"
#include "tests/support/scratch_folder.h"

namespace mcpp {
namespace {

constexpr i64 kEod = 9;

Batch two_samples() {
  Batch batch;
  batch.batch_size = 2, batch.seq_length = 6;
  batch.tokens = {1, 2, 9, 3, 9, 9, 4, 5, 6, 9, 7, 8};
  batch.labels = {2, 9, 3, 9, 9, 4, 5, 6, 9, 7, 8, 1};
  return batch;
}

// Megatron-LM's position_ids are {0, 1, 2, 0, 1, 0} and {0, 1, 2, 3, 0, 1}.
TEST(DocumentsTest, StartAfterEndOfPreviousDocument) {
  EXPECT_EQ(document_starts(two_samples(), kEod), (std::vector<i32>{0, 0, 0, 3, 3, 5, 0, 0, 0, 0, 4, 4}));
  EXPECT_EQ(document_starts(two_samples(), 100), std::vector<i32>(12, 0));
  EXPECT_TRUE(document_starts(Batch(), kEod).empty());
}

// A document that ends with the last token of a sample must not affect the next sample.
TEST(DocumentsTest, DoNotExtendIntoNextSample) {
  Batch batch = two_samples();
  batch.tokens[5] = 9, batch.tokens[6] = 9;
  const std::vector<i32> starts = document_starts(batch, kEod);
  EXPECT_EQ(starts[6], 0);
  EXPECT_EQ(starts[7], 1);
}

TEST(DocumentsTest, LabelsAfterEodAreMasked) {
  Batch batch = two_samples();
  mask_labels_at_eod(batch, kEod);
  EXPECT_EQ(batch.labels, (std::vector<i32>{2, 9, -1, 9, -1, -1, 5, 6, 9, -1, 8, 1}));
  EXPECT_EQ(batch.tokens, two_samples().tokens);
}

TEST(DocumentsTest, MeanLengthComesFromDatasetInfo) {
  const test::ScratchFolder folder;
  const auto write = [&](const char* name, i64 documents, i64 tokens) {
    DatasetInfo info;
    info.documents = documents, info.tokens = tokens;
    write_dataset_info(folder / name, info);
    return std::string(folder / name);
  };
  const std::vector<std::string> both{write("short", 30, 3000), write("long", 1, 1000)};
  EXPECT_DOUBLE_EQ(mean_document_tokens(both, {}), (3000 * 100.0 + 1000 * 1000.0) / 4000);
  EXPECT_DOUBLE_EQ(mean_document_tokens(both, std::vector{0.2, 0.6}), (0.2 * 100 + 0.6 * 1000) / 0.8);
  // The mean is unknown if any dataset lacks it, and impossible values are errors.
  EXPECT_EQ(mean_document_tokens(std::vector{both[0], both[0] + "er"}, {}), 0);
  EXPECT_EQ(mean_document_tokens(std::vector{both[0], write("empty", 0, 0)}, {}), 0);
  EXPECT_EQ(mean_document_tokens({}, {}), 0);
  write_file_atomic(info_path(both[1]), "{\"documents\": ");
  EXPECT_CONTAINS(test::input_error([&] { mean_document_tokens(both, {}); }), "long.json: damaged");
}

}  // namespace
}  // namespace mcpp
