// Compares file bytes, indices, blends and tokens with Megatron Core 0.16.1 (tests/golden/data).
#include <gtest/gtest.h>

#include "data/dataset/blend.h"
#include "data/dataset/datasets.h"
#include "data/dataset/gpt_dataset.h"
#include "data/preprocess/indexed_writer.h"
#include "tests/data/data_golden.h"
#include "tests/support/readers/hdf5_file.h"

namespace mcpp {
namespace {

using test::golden_data;
using test::Hdf5File;

template <class T>
void expect_equal(std::span<const u32> got, const std::vector<T>& expected, const std::string& what) {
  ASSERT_EQ(got.size(), expected.size()) << what;
  for (std::size_t i = 0; i < got.size(); ++i) ASSERT_EQ(i64{got[i]}, expected[i]) << what << " [" << i << "]";
}

void expect_indices(const Dataset& dataset, const Hdf5File& file, const std::string& group) {
  const auto& gpt = dynamic_cast<const GptDataset&>(dataset);
  expect_equal(gpt.document_index(), file.read<i64>(group + "/document_index").values, group + " document_index");
  expect_equal(gpt.sample_index(), file.read<i64>(group + "/sample_index").values, group + " sample_index");
  expect_equal(gpt.shuffle_index(), file.read<i64>(group + "/shuffle_index").values, group + " shuffle_index");
}

void expect_tokens(const Dataset& dataset, const Hdf5File& file, const std::string& group) {
  const auto samples = file.read<i64>(group + "/sample_numbers").values;
  const auto tokens = file.read<i32>(group + "/tokens");
  const auto width = static_cast<std::size_t>(tokens.shape.at(1));
  ASSERT_EQ(static_cast<i64>(width), dataset.seq_length() + 1);
  std::vector<i32> row(width);
  for (std::size_t i = 0; i < samples.size(); ++i) {
    dataset.at(samples[i], row);
    ASSERT_TRUE(std::equal(row.begin(), row.end(), tokens.values.begin() + static_cast<std::ptrdiff_t>(i * width)))
        << group << " sample " << samples[i];
  }
}

void expect_split(const Dataset* dataset, const Hdf5File& file, const std::string& group) {
  if (!file.has(group)) return;
  SCOPED_TRACE(group);
  ASSERT_NE(dataset, nullptr);
  EXPECT_EQ(dataset->size(), file.attribute<i64>(group, "length"));
  if (file.has(group + "/dataset_index")) {
    const auto& blend = dynamic_cast<const BlendedDataset&>(*dataset);
    expect_equal(blend.dataset_index(), file.read<i64>(group + "/dataset_index").values, "dataset_index");
    expect_equal(blend.dataset_sample_index(), file.read<i64>(group + "/dataset_sample_index").values, "sample");
    expect_indices(blend.part(0), file, group + "/part_a");
    expect_indices(blend.part(1), file, group + "/part_b");
  } else {
    expect_indices(*dataset, file, group);
  }
  expect_tokens(*dataset, file, group);
}

class MegatronGoldenTest : public testing::TestWithParam<std::string> {};

TEST_P(MegatronGoldenTest, IndicesAndTokensMatchMegatron) {
  const std::string name = GetParam();
  const Hdf5File file(golden_data() / "expected.h5");
  const test::ScratchFolder cache;
  DataConfig config;
  config.split = file.attribute_string(name, "split");
  config.data_cache_path = cache.path().string();
  const auto prefixes = file.attribute_strings(name, "prefixes");
  for (std::size_t i = 0; i < prefixes.size(); ++i) {
    if (file.has_attribute(name, "weights")) {
      config.data_path.push_back(std::to_string(file.attribute_values<double>(name, "weights").at(i)));
    }
    config.data_path.push_back((golden_data() / prefixes[i]).string());
  }
  std::array<i64, 3> samples{};
  for (std::size_t i = 0; i < 3; ++i) {
    const std::string group = name + "/" + kSplitNames[i];
    if (file.has(group)) samples[i] = file.attribute<i64>(group, "requested_samples");
  }
  // Runs twice: the second time, the indices come from the cache.
  for (int round = 0; round < 2; ++round) {
    const Datasets built = build_train_valid_test_datasets(config, file.attribute<i64>(name, "seq"),
                                                           file.attribute<i64>(name, "seed"), samples, Log(1));
    expect_split(built.train.get(), file, name + "/train");
    expect_split(built.valid(), file, name + "/valid");
    expect_split(built.test.get(), file, name + "/test");
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, MegatronGoldenTest,
                         testing::Values("single", "one_epoch", "partial_epochs", "blend",
                                         "blend_weights_unnormalised"),
                         [](const auto& instance) { return instance.param; });

TEST(GoldenFilesTest, RewrittenDocumentsAreBitwiseIdentical) {
  for (const auto& [name, vocab_size] : {std::pair<std::string, i64>{"a", 257}, {"b", 100000}}) {
    const test::ScratchFolder folder;
    const IndexedDataset source(golden_data() / name);
    EXPECT_EQ(source.token_type(), name == "a" ? TokenType::U16 : TokenType::I32);
    EXPECT_EQ(source.num_documents(), name == "a" ? 400 : 200);
    IndexedDatasetWriter writer(folder / name, vocab_size);
    for (i64 i = 0; i < source.num_sequences(); ++i) {
      std::vector<i32> tokens(static_cast<std::size_t>(source.length(i)));
      source.read(i, 0, tokens);
      writer.add_document(tokens);
    }
    writer.finish();
    EXPECT_EQ(read_text_file(folder / (name + ".bin")), read_text_file(golden_data() / (name + ".bin")));
    EXPECT_EQ(read_text_file(folder / (name + ".idx")), read_text_file(golden_data() / (name + ".idx")));
    EXPECT_EQ(folder.count(), 2u);
  }
}

}  // namespace
}  // namespace mcpp
