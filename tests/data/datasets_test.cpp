#include "data/dataset/datasets.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "data/dataset/blend.h"
#include "data/dataset/dataset_info.h"
#include "data/dataset/gpt_dataset.h"
#include "data/dataset/index/sample_index.h"
#include "data/preprocess/indexed_writer.h"
#include "tests/data/data_golden.h"

namespace mcpp {
namespace {

using test::golden_data;
using test::input_error;
using test::ScratchFolder;
using testing::HasSubstr;

/// Writes `documents` documents of `length` distinct tokens: token i of document d is d * length + i.
std::string write_dataset(const Path& prefix, i32 documents, i32 length) {
  IndexedDatasetWriter writer(prefix, 1 << 22);
  for (i32 d = 0; d < documents; ++d) {
    std::vector<i32> tokens(static_cast<std::size_t>(length));
    for (i32 i = 0; i < length; ++i) tokens[static_cast<std::size_t>(i)] = d * length + i;
    writer.add_document(tokens);
  }
  writer.finish();
  return prefix.string();
}

std::set<i32> tokens_of(const Dataset& dataset) {
  std::set<i32> seen;
  std::vector<i32> row(static_cast<std::size_t>(dataset.seq_length() + 1));
  for (i64 i = 0; i < dataset.size(); ++i) {
    dataset.at(i, row);
    seen.insert(row.begin(), row.end());
  }
  return seen;
}

Datasets build(const DataConfig& config, std::array<i64, 3> samples, i64 seq_length = 16) {
  return build_train_valid_test_datasets(config, seq_length, 1234, samples, Log(1));
}

std::string build_error(const DataConfig& config, std::array<i64, 3> samples, i64 seq_length = 16) {
  return input_error([&] { build(config, samples, seq_length); });
}

// numpy 1.24: RandomState(0).shuffle(arange(10)). The golden data cover the rest.
TEST(RandomStateTest, ShufflesLikeNumpy) {
  std::vector<i32> values{0, 1, 2, 3, 4, 5, 6, 7, 8, 9};
  RandomState(0).shuffle(std::span(values));
  EXPECT_EQ(values, (std::vector<i32>{2, 8, 4, 9, 1, 6, 7, 3, 0, 5}));
  EXPECT_THAT(input_error([] { RandomState{-1}; }), HasSubstr("seed"));
}

TEST(DatasetsTest, TrainingNeverUsesHeldOutText) {
  const ScratchFolder folder;
  DataConfig config;
  config.data_path = {write_dataset(folder / "d", 100, 40)};
  config.split = "80,15,5";
  const Datasets datasets = build(config, {700, 60, 10});
  const auto train = tokens_of(*datasets.train), valid = tokens_of(*datasets.valid()), test = tokens_of(*datasets.test);
  EXPECT_LT(*train.rbegin(), 80 * 40);
  EXPECT_GE(*valid.begin(), 80 * 40);
  EXPECT_LT(*valid.rbegin(), 95 * 40);
  EXPECT_GE(*test.begin(), 95 * 40);
}

TEST(DatasetsTest, ReadsEverySampleOncePerEpoch) {
  const ScratchFolder folder;
  DataConfig config;
  config.data_path = {write_dataset(folder / "d", 10, 33)};
  config.split = "1";
  const Datasets datasets = build(config, {5, 0, 0});
  EXPECT_EQ(datasets.train->size(), (330 - 1) / 16);
  EXPECT_EQ(datasets.valid(), nullptr);
  std::map<i32, int> inputs;
  std::vector<i32> row(17);
  for (i64 i = 0; i < datasets.train->size(); ++i) {
    datasets.train->at(i, row);
    for (std::size_t j = 0; j < 16; ++j) ++inputs[row[j]];
  }
  EXPECT_EQ(inputs.size(), 320u);
  for (const auto& [token, count] : inputs) EXPECT_EQ(count, 1) << token;
}

TEST(DatasetsTest, OriginNamesSourceOfTokens) {
  const ScratchFolder folder;
  DataConfig config;
  config.data_path = {write_dataset(folder / "d", 20, 7)};
  config.split = "1";
  const Datasets datasets = build(config, {8, 0, 0});
  std::vector<i32> row(17);
  for (i64 i = 0; i < datasets.train->size(); ++i) {
    datasets.train->at(i, row);
    std::size_t at = 0;
    for (const SamplePart& part : datasets.train->origin(i).parts) {
      EXPECT_EQ(part.document, part.sequence);
      for (i64 j = 0; j < part.length; ++j) EXPECT_EQ(row.at(at++), part.document * 7 + part.offset + j);
    }
    EXPECT_EQ(at, row.size());
  }
}

TEST(DatasetsTest, KeepsSeveralValidationSetsSeparate) {
  const ScratchFolder folder;
  std::filesystem::create_directories(folder / "more");
  DataConfig config;
  config.train_data_path = {write_dataset(folder / "d", 100, 40)};
  config.valid_data_path = {write_dataset(folder / "books_text_document", 30, 40),
                            write_dataset(folder / "code", 10, 40)};
  config.multiple_validation_sets = true;
  const Datasets some = build(config, {700, 20, 0});
  ASSERT_EQ(some.validation.size(), 2u);
  EXPECT_EQ(some.validation[0].name, "books");
  EXPECT_EQ(some.validation[1].name, "code");
  for (const ValidationSet& set : some.validation) {
    EXPECT_GE(set.dataset->size(), 20);
    EXPECT_EQ(set.dataset->origin(0).prefix, (folder / (set.name == "code" ? "code" : "books_text_document")).string());
  }
  config.full_validation = true;
  const Datasets all = build(config, {700, 1, 0});
  EXPECT_EQ(all.validation[0].dataset->size(), (30 * 40 - 1) / 16);
  EXPECT_EQ(all.validation[1].dataset->size(), (10 * 40 - 1) / 16);
  config.multiple_validation_sets = false;
  EXPECT_EQ(build(config, {700, 1, 0}).valid()->size(), (30 * 40 - 1) / 16 + (10 * 40 - 1) / 16) << "their blend";

  config.valid_data_path = {"0.5", config.valid_data_path[0], "0.5", config.valid_data_path[1]};
  EXPECT_THAT(build_error(config, {700, 1, 0}), HasSubstr("data.full_validation: a blend with weights"));
  config.multiple_validation_sets = true;
  EXPECT_THAT(build_error(config, {700, 1, 0}), HasSubstr("remove the weights"));
  config.valid_data_path = {config.valid_data_path[1], config.valid_data_path[1]};
  EXPECT_THAT(build_error(config, {700, 1, 0}), HasSubstr("is listed twice"));
  EXPECT_EQ(validation_set_names({"a/x", "b/x"}), (std::vector<std::string>{"a/x", "b/x"}));
}

/// The weights of data_path apply to training. A dataset whose share is too small has no validation set.
TEST(DatasetsTest, BuildsSeveralValidationSetsFromOneSplit) {
  const ScratchFolder folder;
  DataConfig config;
  config.data_path = {"0.3", write_dataset(folder / "a", 100, 40),  "0.7", write_dataset(folder / "b", 100, 40),
                      "0.1", write_dataset(folder / "small", 3, 40)};
  config.split = "80,20";
  config.multiple_validation_sets = true;
  const Datasets datasets = build(config, {100, 20, 0});
  ASSERT_EQ(datasets.validation.size(), 3u);
  EXPECT_EQ(datasets.validation[1].name, "b");
  const auto seen = tokens_of(*datasets.validation[1].dataset);
  EXPECT_GE(*seen.begin(), 80 * 40);
  config.split = "97,3";
  EXPECT_EQ(build(config, {100, 20, 0}).validation.size(), 2u);
  config.split = "1";
  EXPECT_TRUE(build(config, {100, 20, 0}).validation.empty());
}

TEST(DatasetsTest, ExplainsInvalidInput) {
  const ScratchFolder folder;
  const std::string d = write_dataset(folder / "d", 10, 20), e = write_dataset(folder / "e", 10, 20);
  DataConfig config;
  EXPECT_THAT(build_error(config, {1, 0, 0}), HasSubstr("data.data_path: is empty"));
  config.data_path = {(folder / "nothing").string()};
  EXPECT_THAT(build_error(config, {1, 0, 0}), HasSubstr("nothing.idx"));
  config.data_path = {d};
  config.split = "99,1,0";
  EXPECT_EQ(build(config, {1, 0, 1}).test, nullptr);
  config.split = "10,90,0";
  EXPECT_THAT(build_error(config, {1, 1, 0}, 20), HasSubstr("has only 20 tokens; one sample needs 21"));
  for (const char* split : {"", "a", "1,2,3,4", "-1,2", "0,0", "1,,2", "nan"}) {
    config.split = split;
    EXPECT_THAT(build_error(config, {1, 1, 0}), HasSubstr("data.split")) << split;
  }
  config.split = "0,1,0";
  EXPECT_THAT(build_error(config, {1, 1, 0}), HasSubstr("leaves no text for training"));
  config.split = "1";
  for (const auto& list :
       {std::vector<std::string>{"0.5", d, e}, {d, "0.5"}, {"0", d}, {"-1", d, "2", e}, {"inf", d}}) {
    config.data_path = list;
    EXPECT_THAT(build_error(config, {1, 0, 0}), HasSubstr("data.data_path")) << list[0];
  }
  config.data_path = {d, e};
  EXPECT_THAT(build_error(config, {100, 0, 0}), HasSubstr("set a weight for each prefix"));
  EXPECT_EQ(build(config, {20, 0, 0}).train->size(), 20);
  config.data_path.clear();
  config.split = DataConfig().split;
  config.train_data_path = {d};
  config.valid_data_path = {e, (folder / "." / "d").string()};
  EXPECT_THAT(build_error(config, {1, 1, 0}), HasSubstr("must not be trained on"));
}

std::string warnings_of(const DataConfig& config, std::array<i64, 3> samples, i64 seq_length = 16) {
  testing::internal::CaptureStderr();
  build_train_valid_test_datasets(config, seq_length, 1234, samples, Log(0));
  return testing::internal::GetCapturedStderr();
}

TEST(DatasetsTest, UsesEntireTextForTrainingWhenTooSmallToSplit) {
  const ScratchFolder folder;
  const std::string d = write_dataset(folder / "d", 400, 20), e = write_dataset(folder / "e", 10, 20);
  DataConfig config;
  config.data_path = {d};  // the default split: 12 documents for validation, none for testing
  const Datasets datasets = build(config, {100, 8, 8}, 250);
  EXPECT_GE(datasets.train->size(), 30);
  EXPECT_EQ(datasets.valid(), nullptr) << "12 documents have 240 tokens";
  EXPECT_EQ(datasets.test, nullptr);
  const std::string warnings = warnings_of(config, {100, 8, 8}, 250);
  EXPECT_THAT(warnings,
              HasSubstr("gives the valid split 12 of 400 documents with 240 tokens, and one sample needs 251"));
  EXPECT_THAT(warnings, HasSubstr("gives the test split 0 of 400 documents with 0 tokens, and one sample needs 251"));
  EXPECT_NE(build(config, {100, 8, 8}, 200).valid(), nullptr);

  for (const auto& list : {std::vector<std::string>{"1", d, "2", e}, {d, e}}) {
    config.data_path = list;
    const Datasets blend = build(config, {10, 4, 4}, 16);
    EXPECT_GE(blend.train->size(), 10);
    ASSERT_NE(blend.valid(), nullptr);
    for (i64 i = 0; i < blend.valid()->size(); ++i) EXPECT_EQ(blend.valid()->origin(i).prefix, d);
    EXPECT_EQ(blend.test, nullptr);
    EXPECT_THAT(warnings_of(config, {10, 4, 4}, 16),
                HasSubstr("e: data.split = \"969,30,1\" gives the valid split 0 of 10"));
  }
  config.data_path.clear();
  config.train_data_path = {d};
  config.valid_data_path = {e};  // explicitly named for validation
  EXPECT_THAT(build_error(config, {1, 1, 0}, 200), HasSubstr("the valid split has only 200 tokens"));
}

TEST(DatasetsTest, WarnsWhenHeldOutTextIsReadManyTimes) {
  const ScratchFolder folder;
  DataConfig config;
  config.data_path = {write_dataset(folder / "d", 100, 20)};
  config.split = "97,3,0";  // 3 documents, 60 tokens, 3 samples of 16
  EXPECT_THAT(
      warnings_of(config, {10, 18918, 0}),
      HasSubstr("the valid split has 3 documents, 60 tokens, 3 samples; every evaluation reads 18918 samples of "
                "it, each 6306 times"));
  EXPECT_EQ(warnings_of(config, {10, 5, 0}), "") << "less than twice";
  EXPECT_EQ(warnings_of(config, {10000, 0, 0}), "") << "training for several epochs is intended";
}

TEST(DatasetIdentityTest, DistinguishesTexts) {
  const ScratchFolder folder;
  const std::string d = write_dataset(folder / "d", 300'000, 5);  // larger than the part that is hashed completely
  const std::string identity = dataset_identity(d);
  EXPECT_THAT(identity, HasSubstr("300000 sequences, 300000 documents, 1500000 tokens, .idx "));
  EXPECT_EQ(dataset_identity(d), identity);
  const std::string bin = read_text_file(d + ".bin"), idx = read_text_file(d + ".idx");
  for (const auto& [name, content] : {std::pair(".bin", bin), std::pair(".idx", idx)}) {
    for (const std::size_t at : {content.size() - 1, content.size() / 255 * 100, std::size_t{40}}) {
      std::string other = content;
      other[at] = static_cast<char>(other[at] ^ 1);
      write_file_atomic(d + name, other);
      EXPECT_NE(dataset_identity(d), identity) << name << " " << at;
    }
    write_file_atomic(d + name, content);
  }
  EXPECT_EQ(dataset_identity(d), identity);
  write_dataset(folder / "d", 300'000, 4);
  EXPECT_NE(dataset_identity(d), identity);
  write_file_atomic(d + ".idx", idx.substr(0, 20));
  EXPECT_THAT(input_error([&] { dataset_identity(d); }), HasSubstr("d.idx: truncated"));
}

TEST(DatasetsTest, SeparatePathsUseAllTheirText) {
  const ScratchFolder folder;
  DataConfig config;
  config.train_data_path = {write_dataset(folder / "d", 10, 20)};
  config.valid_data_path = {"1", write_dataset(folder / "e", 4, 20)};
  const Datasets datasets = build(config, {3, 2, 1});
  EXPECT_EQ(datasets.train->size(), 199 / 16);
  EXPECT_EQ(datasets.valid()->size(), 79 / 16);
  EXPECT_EQ(datasets.test, nullptr);
}

TEST(BlendTest, ProportionsFollowWeights) {
  const std::vector<double> weights = normalize_weights(std::vector<double>{1, 2, 5});
  const BlendIndices indices = build_blend_indices(weights, 8000);
  std::array<i64, 3> counts{};
  for (std::size_t i = 0; i < indices.dataset_index.size(); ++i) {
    const u32 d = indices.dataset_index[i];
    EXPECT_EQ(indices.dataset_sample_index[i], counts.at(d)++);
    for (std::size_t k = 0; k < 3; ++k) EXPECT_NEAR(static_cast<double>(counts[k]), weights[k] * double(i + 1), 2);
  }
  EXPECT_EQ(blend_target(1001, 0.375), 376);
  EXPECT_EQ(blend_target_with_surplus(1001, 0.375), 378);
}

/// The share of each dataset up to a sample is the integral of its weight, here summed sample by sample.
TEST(BlendTest, ChangingWeightsFollowTheirIntegral) {
  constexpr i64 kSize = 4000;
  const BlendWeights weights = BlendWeights({8, 1, 1}, {1, 9, 0}).normalized();
  const BlendIndices indices = build_blend_indices(weights, kSize);
  std::array<double, 3> expected{};
  std::array<i64, 3> counts{};
  for (i64 i = 0; i < kSize; ++i) {
    const double progress = (static_cast<double>(i) + 0.5) / kSize;
    ++counts.at(indices.dataset_index[static_cast<std::size_t>(i)]);
    for (std::size_t d = 0; d < 3; ++d) {
      expected[d] += weights.start[d] + (weights.end[d] - weights.start[d]) * progress;
      EXPECT_NEAR(static_cast<double>(counts[d]), expected[d], 2) << i;
    }
  }
  EXPECT_EQ(count_blend_samples(weights, kSize, ScratchFolder().path(), Log(1)),
            std::vector<i64>(counts.begin(), counts.end()));
}

TEST(BlendTest, ParsesChangingWeights) {
  const BlendList list = parse_blend_list({"0.8:0.2", "a", "1", "b", "0:0.5", "c"}, "data.data_path");
  EXPECT_EQ(list.weights.start, (std::vector<double>{0.8, 1, 0}));
  EXPECT_EQ(list.weights.end, (std::vector<double>{0.2, 1, 0.5}));
  EXPECT_EQ(list.weights.mean(), (std::vector<double>{0.5, 1, 0.25}));
  EXPECT_TRUE(parse_blend_list({"0.8", "a", "0.2", "b"}, "k").weights.is_constant());
  const auto error = [](const std::string& first, const std::string& second) {
    return input_error([&] { parse_blend_list({first, "a", second, "b"}, "k"); });
  };
  for (const char* weight : {"0:0", "-1:1", "1:-1", "inf:1", "0"})
    EXPECT_THAT(error(weight, "1"), HasSubstr("k: the weight")) << weight;
  for (const char* entry : {"1:", ":1", "1:2:3", "a:b"}) EXPECT_THAT(error(entry, "1"), HasSubstr("k: mixes")) << entry;
  EXPECT_THAT(error("0:1", "0:2"), HasSubstr("all weights are 0 at the start"));
}

TEST(DatasetsTest, MixtureChangesDuringTraining) {
  const ScratchFolder folder;
  DataConfig config;
  config.data_path = {"1:0", write_dataset(folder / "a", 200, 40), "0:1", write_dataset(folder / "b", 200, 40)};
  config.split = "80,20";
  const Datasets datasets = build(config, {200, 40, 0});
  ASSERT_EQ(datasets.train->size(), 200);
  std::array<std::array<i64, 2>, 2> halves{};
  for (i64 i = 0; i < 200; ++i) ++halves.at(i / 100).at(datasets.train->origin(i).dataset);
  EXPECT_EQ(halves, (std::array<std::array<i64, 2>, 2>{{{75, 25}, {25, 75}}}));
  std::array<i64, 2> valid{};
  for (i64 i = 0; i < 40; ++i) ++valid.at(datasets.valid()->origin(i).dataset);
  EXPECT_EQ(valid, (std::array<i64, 2>{20, 20})) << "an evaluation reads the mean of the mixture";
}

TEST(IndexCacheTest, IsReusedAndRebuiltWhenDamaged) {
  const ScratchFolder folder;
  write_dataset(folder / "d", 50, 40);
  const IndexedDataset source(folder / "d");
  const GptDatasetSpec spec{{0, 50}, "train", 16, 1, 300};
  const Path cache = folder / "cache";
  const auto make = [&] { return GptDataset(source, spec, cache, Log(1)); };
  const GptDataset first = make();
  const std::vector<u32> truth(first.shuffle_index().begin(), first.shuffle_index().end());
  ASSERT_TRUE(first.is_cached());
  const Path file = std::filesystem::directory_iterator(cache)->path();
  const auto time = std::filesystem::last_write_time(file);
  make();
  EXPECT_EQ(std::filesystem::last_write_time(file), time);

  const std::string good = read_text_file(file);
  for (const std::size_t at : {std::size_t{0}, std::size_t{9}, std::size_t{17}, good.size() / 2, good.size() - 1}) {
    std::string bad = good;
    bad[at] = static_cast<char>(bad[at] ^ 0x55);
    write_file_atomic(file, bad);
    const GptDataset again = make();
    EXPECT_TRUE(std::equal(truth.begin(), truth.end(), again.shuffle_index().begin(), again.shuffle_index().end()));
    EXPECT_EQ(read_text_file(file), good);
  }
  for (const std::size_t size : {std::size_t{0}, std::size_t{20}, good.size() - 4}) {
    write_file_atomic(file, good.substr(0, size));
    make();
    EXPECT_EQ(read_text_file(file), good);
  }
}

TEST(IndexCacheTest, ChangedTextUsesSeparateEntries) {
  const ScratchFolder folder;
  const GptDatasetSpec spec{{0, 50}, "train", 16, 1, 300};
  for (const i32 length : {40, 41}) {
    write_dataset(folder / "d", 50, length);
    const IndexedDataset source(folder / "d");
    GptDataset(source, spec, folder / "cache", Log(1));
  }
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder / "cache"), {}), 2);
}

TEST(IndexCacheTest, RejectsIndexLargerThanMemory) {
  constexpr i64 kMemory = 16'000'000;
  check_index_fits("few", 1'000'000, 1, kMemory);
  const std::string error = input_error([] { check_index_fits("many", 1'000'001, 1, kMemory); });
  EXPECT_THAT(error, HasSubstr("many: the index would take "));
  EXPECT_THAT(error, HasSubstr("lower training.train_iters"));
}

TEST(IndexCacheTest, UnwritableFolderCausesOnlyWarning) {
  const ScratchFolder folder;
  write_dataset(folder / "d", 50, 40);
  write_file_atomic(folder / "file", "a file instead of the folder");
  const IndexedDataset source(folder / "d");
  const GptDatasetSpec spec{{0, 50}, "train", 16, 1, 300};
  testing::internal::CaptureStderr();
  const GptDataset dataset(source, spec, folder / "file", Log(0));
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("data_cache_path"));
  EXPECT_FALSE(dataset.is_cached());
  EXPECT_GE(dataset.size(), 300);
}

}  // namespace
}  // namespace mcpp
