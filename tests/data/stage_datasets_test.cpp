// Training samples of runs with stages: which text each stage reads.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <numeric>

#include "data/dataset/blend.h"
#include "data/dataset/datasets.h"
#include "data/preprocess/indexed_writer.h"
#include "tests/data/data_golden.h"

namespace mcpp {
namespace {

using test::input_error;
using test::ScratchFolder;
using testing::ElementsAre;
using testing::HasSubstr;

using Tokens = std::vector<i32>;

/// Writes documents of different lengths with distinct tokens. Returns the prefix.
std::string write_dataset(const Path& prefix, i32 documents, i32 first_token = 0) {
  IndexedDatasetWriter writer(prefix, 1 << 22);
  for (i32 d = 0, token = first_token; d < documents; ++d) {
    Tokens tokens(static_cast<std::size_t>(3 + d * 7 % 11));
    for (i32& t : tokens) t = token++;
    writer.add_document(tokens);
  }
  writer.finish();
  return prefix.string();
}

StageText stage(const std::vector<std::string>& data_path, i64 seq_length, i64 samples, bool repeat_data = false) {
  StageText text{.data = {}, .seq_length = seq_length, .samples = samples, .repeat_data = repeat_data};
  text.data.data_path = data_path;
  text.data.split = "80,20,0";
  return text;
}

/// Builds the datasets of the last stage.
Datasets build(const std::vector<StageText>& stages, i64 seed = 1234, i64 valid = 0) {
  const StageText& last = stages.back();
  return build_train_valid_test_datasets(last.data, last.seq_length, seed, {last.samples, valid, 0}, Log(1),
                                         SingleIndexRank(), stages);
}

/// Returns the inputs of all samples (without the last label), in the order of the text, by dataset of the blend.
std::map<i64, Tokens> text_by_dataset(const Dataset& dataset) {
  std::map<std::pair<i64, i64>, Tokens> ordered;
  Tokens row(static_cast<std::size_t>(dataset.seq_length() + 1));
  for (i64 i = 0; i < dataset.size(); ++i) {
    dataset.at(i, row);
    const SampleOrigin origin = dataset.origin(i);
    EXPECT_TRUE(
        ordered.emplace(std::pair(origin.dataset, origin.shuffled_sample), Tokens(row.begin(), row.end() - 1)).second)
        << "sample " << i << " repeats a sample";
  }
  std::map<i64, Tokens> text;
  for (const auto& [key, tokens] : ordered) text[key.first].insert(text[key.first].end(), tokens.begin(), tokens.end());
  return text;
}

Tokens text_of(const std::vector<StageText>& stages, i64 dataset = 0) {
  return text_by_dataset(*build(stages).train)[dataset];
}

Tokens joined(Tokens a, const Tokens& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

TEST(StageDatasetsTest, StagesOfAnyLengthReadOneTextWithoutGapsOrRepetition) {
  const ScratchFolder folder;
  const std::string d = write_dataset(folder / "d", 100);
  const Tokens whole = text_of({stage({d}, 1, 3 * 64 + 5 * 40 + 17 * 8)});
  const StageText first = stage({d}, 3, 64), second = stage({d}, 40, 5), third = stage({d}, 17, 8);
  const Tokens a = text_of({first}), b = text_of({first, second}), c = text_of({first, second, third});
  EXPECT_EQ(a.size(), 192u);
  EXPECT_EQ(b.size(), 200u);
  EXPECT_EQ(joined(joined(a, b), c), whole);
  const std::set<i32> different(whole.begin(), whole.end());
  EXPECT_EQ(different.size(), whole.size()) << "within the first epoch no token is read twice";
}

/// An epoch contains each document of the split once, entire and in one piece, in an order that differs by epoch.
TEST(StageDatasetsTest, ReadsEachDocumentOncePerEpoch) {
  const ScratchFolder folder;
  const std::string d = write_dataset(folder / "d", 50);
  const IndexedDataset source(d);
  const SequenceRange train{0, 40};
  const i64 epoch = count_tokens(source, train);
  const Tokens text = text_of({stage({d}, 1, 3 * epoch)});
  std::vector<Tokens> orders;
  for (i64 e = 0; e < 3; ++e) {
    std::span<const i32> left =
        std::span(text).subspan(static_cast<std::size_t>(e * epoch), static_cast<std::size_t>(epoch));
    Tokens order;
    while (!left.empty()) {
      for (i64 sequence = train.begin; sequence < train.end; ++sequence) {
        Tokens document(static_cast<std::size_t>(source.length(sequence)));
        source.read(sequence, 0, document);
        if (document[0] != left[0]) continue;
        order.push_back(static_cast<i32>(sequence));
        ASSERT_LE(document.size(), left.size());
        ASSERT_EQ(document, Tokens(left.begin(), left.begin() + std::ssize(document)));
        left = left.subspan(document.size());
        break;
      }
      ASSERT_LT(order.size(), 41u) << "a document is not in the split";
    }
    Tokens sorted = order, all(40);
    std::ranges::sort(sorted);
    std::iota(all.begin(), all.end(), 0);
    EXPECT_EQ(sorted, all);
    EXPECT_NE(order, all) << "the documents are not shuffled";
    orders.push_back(order);
  }
  EXPECT_NE(orders[0], orders[1]);
  EXPECT_NE(orders[1], orders[2]);
}

TEST(StageDatasetsTest, LastLabelIsFirstInputOfNextStage) {
  const ScratchFolder folder;
  const std::string d = write_dataset(folder / "d", 60);
  const StageText first = stage({d}, 12, 7), second = stage({d}, 5, 9);
  const Datasets a = build({first}), b = build({first, second});
  Tokens row(13);
  for (i64 i = 0; i < a.train->size(); ++i) {
    if (a.train->origin(i).shuffled_sample == 6) a.train->at(i, row);
  }
  EXPECT_EQ(row.back(), text_of({first, second})[0]);
  EXPECT_EQ(a.stage_starts, (std::vector<std::vector<i64>>{{0}}));
  EXPECT_EQ(b.stage_starts, (std::vector<std::vector<i64>>{{0}, {12 * 7}}));
}

/// The counts of each dataset are those that a blend of this size draws, recomputed here from its samples.
TEST(StageDatasetsTest, BlendsContinueEachDataset) {
  const ScratchFolder folder;
  const std::string a = write_dataset(folder / "a", 300), b = write_dataset(folder / "b", 300, 100'000),
                    c = write_dataset(folder / "c", 300, 200'000);
  const StageText first = stage({"0.7", a, "0.3", b}, 6, 50), second = stage({"0.2", b, "0.5", c, "0.3", a}, 11, 30),
                  third = stage({a}, 4, 20);
  auto texts1 = text_by_dataset(*build({first}).train), texts2 = text_by_dataset(*build({first, second}).train);
  const Tokens third_text = text_of({first, second, third});
  const std::size_t a1 = texts1[0].size(), b1 = texts1[1].size(), a2 = texts2[2].size(), b2 = texts2[0].size();
  EXPECT_EQ(a1, 6u * 35);
  EXPECT_EQ(b1, 6u * 15);
  EXPECT_EQ(joined(joined(texts1[0], texts2[2]), third_text),
            text_of({stage({a}, 1, std::ssize(third_text) + static_cast<i64>(a1 + a2))}));
  EXPECT_EQ(joined(texts1[1], texts2[0]), text_of({stage({b}, 1, static_cast<i64>(b1 + b2))}));
  EXPECT_EQ(texts2[1], text_of({stage({c}, 1, std::ssize(texts2[1]))}));
  EXPECT_THAT(build({first, second, third}).stage_starts.back(), ElementsAre(a1 + a2, b1 + b2, texts2[1].size()));
}

TEST(StageDatasetsTest, ChangingWeightsLeaveNoGap) {
  const ScratchFolder folder;
  const std::string a = write_dataset(folder / "a", 300), b = write_dataset(folder / "b", 300, 100'000);
  const StageText first = stage({"1:0", a, "0:1", b}, 4, 60), second = stage({"0.2:0.6", b, "0.8:0.4", a}, 9, 40);
  auto texts1 = text_by_dataset(*build({first}).train), texts2 = text_by_dataset(*build({first, second}).train);
  EXPECT_EQ(texts1[0].size(), 4u * 30);
  EXPECT_EQ(texts2[0].size(), 9u * 16);
  for (const auto& [prefix, text] : {std::pair(a, joined(texts1[0], texts2[1])), {b, joined(texts1[1], texts2[0])}})
    EXPECT_EQ(text, text_of({stage({prefix}, 1, std::ssize(text))}));
}

TEST(StageDatasetsTest, SpellingOfPathDoesNotRestartText) {
  const ScratchFolder folder;
  const std::string d = write_dataset(folder / "d", 60);
  const StageText first = stage({d}, 5, 10), second = stage({(folder / "." / "d").string()}, 5, 10);
  EXPECT_EQ(joined(text_of({first}), text_of({first, second})), text_of({stage({d}, 1, 100)}));
}

TEST(StageDatasetsTest, RepeatsDataOnlyWhenRequested) {
  const ScratchFolder folder;
  const std::string d = write_dataset(folder / "d", 60);
  const StageText first = stage({d}, 5, 10), repeated = stage({d}, 5, 4, true), last = stage({d}, 5, 10);
  const Tokens whole = text_of({stage({d}, 1, 100)});
  EXPECT_EQ(text_of({first, repeated}), Tokens(whole.begin(), whole.begin() + 20));
  EXPECT_EQ(text_of({first, repeated, last}), Tokens(whole.begin() + 50, whole.end()))
      << "a later stage continues after the furthest token read";
  EXPECT_EQ(build({first, repeated}).stage_starts.back(), (std::vector<i64>{50, -1}));
}

/// Without weights, stages share one pass over the datasets.
TEST(StageDatasetsTest, BlendWithoutWeightsIsReadOnce) {
  const ScratchFolder folder;
  const std::string a = write_dataset(folder / "a", 50), b = write_dataset(folder / "b", 100, 100'000);
  const IndexedDataset text_a(a), text_b(b);
  const i64 tokens = count_tokens(text_a, {0, 40}) + count_tokens(text_b, {0, 80});
  const StageText first = stage({a, b}, 4, tokens / 8), second = stage({a, b}, 8, tokens / 20);
  std::set<i32> seen;
  for (const auto& stages : {std::vector{first}, {first, second}}) {
    for (const auto& [dataset, text] : text_by_dataset(*build(stages).train)) {
      for (const i32 token : text) EXPECT_TRUE(seen.insert(token).second) << token;
    }
  }
  EXPECT_GT(std::ssize(seen), tokens * 85 / 100);
  const StageText third = stage({a, b}, 4, tokens / 8);
  EXPECT_THAT(input_error([&] {
                build({first, second, third});
              }),
              HasSubstr("a blend without weights is read only once; set a weight for each prefix"));
  const StageText all = stage({b}, 4, count_tokens(text_b, {0, 80}) / 4);
  EXPECT_THAT(input_error([&] { build({all, second}); }), HasSubstr("that earlier stages have not read"));
}

TEST(StageDatasetsTest, NeverReadsHeldOutText) {
  const ScratchFolder folder;
  const std::string d = write_dataset(folder / "d", 50);
  const StageText first = stage({d}, 16, 40), second = stage({d}, 8, 60);
  const Datasets datasets = build({first, second}, 1234, 4);
  const Tokens train = text_by_dataset(*datasets.train)[0], valid = text_by_dataset(*datasets.valid())[0];
  EXPECT_LT(*std::ranges::max_element(train), *std::ranges::min_element(valid));
}

TEST(StageDatasetsTest, OrderOfSamplesIsShuffledAndDependsOnSeed) {
  const ScratchFolder folder;
  const std::string d = write_dataset(folder / "d", 200);
  const auto order = [&](i64 seed) {
    const Datasets datasets = build({stage({d}, 4, 100)}, seed);
    std::vector<i64> samples;
    for (i64 i = 0; i < 100; ++i) samples.push_back(datasets.train->origin(i).shuffled_sample);
    return samples;
  };
  std::vector<i64> sorted = order(1);
  EXPECT_NE(order(1), order(2));
  EXPECT_EQ(order(1), order(1));
  EXPECT_FALSE(std::ranges::is_sorted(sorted));
  std::ranges::sort(sorted);
  for (i64 i = 0; i < 100; ++i) EXPECT_EQ(sorted[static_cast<std::size_t>(i)], i);
}

/// Expected values: Philox4x32-10 and numpy.random.RandomState(bits).shuffle, computed in Python. They must never
/// change, so that runs resume with later versions of the program.
TEST(StageDatasetsTest, OrderEqualsGoldenOrder) {
  const ScratchFolder folder;
  IndexedDatasetWriter writer(folder / "d", 100);
  for (i32 d = 0; d < 10; ++d) writer.add_document(Tokens(4, d));
  writer.finish();
  const IndexedDataset source((folder / "d").string());
  const SampleIndices indices = build_range_indices(source, {0, 10}, 9, 1234, {.first_token = 5, .samples = 8});
  EXPECT_THAT(indices.document_index, ElementsAre(2, 9, 3, 8, 1, 4, 6, 0, 5, 4, 1, 0, 6, 5, 7, 8, 3, 2, 9));
  EXPECT_THAT(indices.shuffle_index, ElementsAre(1, 2, 5, 7, 0, 3, 6, 4));
  ASSERT_EQ(indices.sample_index.size(), 18u);
  for (u32 i = 0; i < 9; ++i) {
    EXPECT_EQ(indices.sample_index[2 * i], (1 + 9 * i) / 4);
    EXPECT_EQ(indices.sample_index[2 * i + 1], (1 + 9 * i) % 4);
  }
}

}  // namespace
}  // namespace mcpp
