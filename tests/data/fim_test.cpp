#include "data/dataset/fim.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/json.h"
#include "base/strings.h"
#include "data/dataset/batch.h"
#include "data/dataset/datasets.h"
#include "data/preprocess/indexed_writer.h"
#include "data/preprocess/verify.h"
#include "tests/data/data_golden.h"

namespace mcpp {
namespace {

using test::input_error;
using test::ScratchFolder;
using testing::ElementsAre;
using testing::HasSubstr;
using Tokens = std::vector<i32>;

constexpr const char* kPrefix = "<|fim_prefix|>";
constexpr const char* kMiddle = "<|fim_middle|>";
constexpr const char* kSuffix = "<|fim_suffix|>";
constexpr const char* kPad = "<|fim_pad|>";
constexpr const char* kSplit = "<|file_sep|>";

class FimTest : public testing::Test {
 protected:
  FimTest() {
    write_file_atomic(folder_ / "tokenizer.json",
                      test::tokenizer_with({kPrefix, kMiddle, kSuffix, kPad}, /*other=*/{kSplit}));
  }

  DataConfig config(double rate = 1) const {
    DataConfig config;
    config.tokenizer_model = (folder_ / "tokenizer.json").string();
    config.fim_rate = rate;
    config.fim_prefix_token = kPrefix;
    config.fim_middle_token = kMiddle;
    config.fim_suffix_token = kSuffix;
    return config;
  }
  /// Writes documents of text, each with <eod>, and returns the prefix.
  std::string write_dataset(const std::string& name, i64 documents) const {
    const Tokenizer tokenizer(folder_ / "tokenizer.json");
    IndexedDatasetWriter writer(folder_ / name, tokenizer.vocab_size());
    for (i64 d = 0; d < documents; ++d) {
      Tokens tokens = tokenizer.encode(str("document ", d, " of ", name, " says caf\u00e9\n"));
      tokens.push_back(tokenizer.eod());
      writer.add_document(tokens);
    }
    writer.finish();
    return (folder_ / name).string();
  }
  static std::vector<Tokens> samples_of(const Dataset& dataset) {
    std::vector<Tokens> samples;
    for (i64 i = 0; i < dataset.size(); ++i)
      dataset.at(i, samples.emplace_back(static_cast<std::size_t>(dataset.seq_length() + 1)));
    return samples;
  }
  static std::vector<Tokens> samples_of(const DataConfig& config, i64 seed = 5,
                                        std::span<const StageText> stages = {}) {
    const Datasets datasets =
        build_train_valid_test_datasets(config, 32, seed, {12, 0, 0}, Log(1), SingleIndexRank(), stages);
    return samples_of(*datasets.train);
  }

  ScratchFolder folder_;
};

TEST_F(FimTest, MatchesReferenceImplementation) {
  i64 cases = 0, padded = 0;
  for (const std::string_view line : split(read_text_file(test::golden_folder() / "fim/expected.jsonl"), '\n')) {
    if (line.empty()) continue;
    const Json expected = Json::parse(line);
    const Json& options = expected["options"];
    DataConfig data = config(options["rate"]);
    data.fim_spm_rate = options["spm_rate"];
    data.fim_fragment_rate = options["fragment_rate"];
    data.fim_no_prefix = options["no_prefix"];
    data.fim_pad_token = kPad;
    if (options["split"].get<bool>()) data.fim_split_sample = kSplit;
    const FimTransform transform(data);
    auto tokens = expected["tokens"].get<Tokens>();
    std::vector<u8> targets(tokens.size(), 1);
    transform.apply(std::stoull(expected["key"].get<std::string>()), expected["sample"], tokens, targets);
    EXPECT_EQ(tokens, expected["expected"].get<Tokens>()) << line;
    const i32 pad = transform.tokenizer().id(kPad);
    for (std::size_t i = 0; i < tokens.size(); ++i) EXPECT_EQ(targets[i], tokens[i] == pad ? 0 : 1) << i;
    padded += tokens.back() == pad;
    ++cases;
  }
  EXPECT_EQ(cases, 72);
  EXPECT_GE(padded, 3);
}

TEST_F(FimTest, PartsOfModelThatAddsSpacesJoinToOriginalText) {
  Json file = Json::parse(read_text_file(test::golden_folder() / "tokenizers/metaspace.json"));
  i64 id = 606;
  for (const char* piece : {kPrefix, kMiddle, kSuffix})
    file["added_tokens"].push_back({{"id", id++}, {"content", piece}, {"special", true}, {"normalized", false}});
  write_file_atomic(folder_ / "tokenizer.json", file.dump());
  const FimTransform transform(config());
  const Tokenizer& tokenizer = transform.tokenizer();
  const Tokens whole = tokenizer.encode("The king and the queen of the land");
  for (const std::size_t skipped : {0U, 1U, 2U}) {  // a sample may begin inside a document
    const Tokens tokens(whole.begin() + static_cast<std::ptrdiff_t>(skipped), whole.end());
    for (u64 sample = 0; sample < 50; ++sample) {
      Tokens found = tokens;
      found.resize(tokens.size() + 40, tokenizer.eod());
      transform.apply(1, sample, found, {});
      std::map<i32, Tokens> parts;  // by the mark before them
      i32 mark = -1;
      for (const i32 token : found) {
        if (token == tokenizer.eod()) break;
        if (token >= 606)
          parts[mark = token];
        else
          parts[mark].push_back(token);
      }
      ASSERT_EQ(parts.size(), 3U);
      const bool is_spm = parts[606].empty() && found[1] == 608;
      Tokens joined = is_spm ? parts[607] : parts[606];
      if (!is_spm) joined.insert(joined.end(), parts[607].begin(), parts[607].end());
      joined.insert(joined.end(), parts[608].begin(), parts[608].end());
      EXPECT_EQ(tokenizer.decode(joined), tokenizer.decode(tokens)) << sample;
    }
  }
}

TEST_F(FimTest, ReportsMissingTokensByKey) {
  DataConfig data = config();
  data.fim_prefix_token = DataConfig().fim_prefix_token;
  const std::string error = input_error([&] { FimTransform{data}; });
  EXPECT_THAT(error, HasSubstr("data.fim_prefix_token: "));
  EXPECT_THAT(error, HasSubstr("has no token \"<fim_prefix>\"; it has --data.fim_prefix_token=<|fim_prefix|> "));
  data = config();
  data.fim_split_sample = "<repo>";
  EXPECT_THAT(input_error([&] { FimTransform{data}; }), HasSubstr("data.fim_split_sample: "));
  data = config();
  data.fim_middle_token = kPrefix;
  EXPECT_THAT(input_error([&] { FimTransform{data}; }), HasSubstr("must be three different tokens"));
  data = config();
  data.tokenizer_model = (test::golden_folder() / "tokenizers/gpt2.json").string();
  EXPECT_THAT(input_error([&] { FimTransform{data}; }), HasSubstr("use a tokenizer with special tokens"));
}

TEST_F(FimTest, AppliesToTrainingSamplesOnly) {
  DataConfig data = config();
  data.data_path = {write_dataset("d", 60)};
  data.split = "50,25,25";
  DataConfig plain = data;
  plain.fim_rate = 0;
  const auto build = [](const DataConfig& config) {
    return build_train_valid_test_datasets(config, 32, 5, {12, 4, 4}, Log(1));
  };
  const Datasets rearranged = build(data), original = build(plain);
  EXPECT_EQ(samples_of(*rearranged.valid()), samples_of(*original.valid()));
  EXPECT_EQ(samples_of(*rearranged.test), samples_of(*original.test));
  const Tokenizer tokenizer(data.tokenizer_model);
  for (const Tokens& sample : samples_of(*rearranged.train))
    EXPECT_GT(std::ranges::count(sample, tokenizer.id(kPrefix)), 0);
  for (const Tokens& sample : samples_of(*original.train))
    EXPECT_EQ(std::ranges::count(sample, tokenizer.id(kPrefix)), 0);
}

TEST_F(FimTest, ChoicesDependOnSeedDatasetAndStageOnly) {
  DataConfig data = config(0.5);
  data.data_path = {write_dataset("d", 60)};
  data.split = "1";
  const std::vector<Tokens> samples = samples_of(data);
  EXPECT_EQ(samples_of(data), samples);
  EXPECT_NE(samples_of(data, 6), samples);
  const Datasets datasets = build_train_valid_test_datasets(data, 32, 5, {12, 0, 0}, Log(1));
  Tokens last(33);
  datasets.train->at(11, last);  // reads no other sample
  EXPECT_EQ(last, samples[11]);
  // Both stages read the same text.
  const StageText stage{.data = data, .seq_length = 32, .samples = 12, .repeat_data = true};
  const std::vector<StageText> one{stage}, two{stage, stage};
  EXPECT_NE(samples_of(data, 5, two), samples_of(data, 5, one));
  EXPECT_EQ(samples_of(data, 5, two), samples_of(data, 5, two));
  data.fim_rate = 0;
  EXPECT_EQ(samples_of(data, 5, two), samples_of(data, 5, one));
}

TEST_F(FimTest, RateIsFrequencyOfRearrangedDocuments) {
  DataConfig data = config(0.3);
  data.fim_spm_rate = 0.25;
  const FimTransform transform(data);
  const Tokenizer& tokenizer = transform.tokenizer();
  const Tokens text = tokenizer.encode("some text");
  i64 rearranged = 0, spm = 0;
  for (u64 sample = 0; sample < 4000; ++sample) {
    Tokens tokens = text;
    tokens.resize(text.size() + 3, tokenizer.eod());
    transform.apply(3, sample, tokens, {});
    rearranged += tokens[0] == tokenizer.id(kPrefix);
    spm += tokens[0] == tokenizer.id(kPrefix) && tokens[1] == tokenizer.id(kSuffix) &&
           std::ranges::find(tokens, tokenizer.id(kMiddle)) != tokens.end() && tokens[2] != tokenizer.id(kMiddle);
  }
  EXPECT_NEAR(static_cast<double>(rearranged) / 4000, 0.3, 0.03);
  EXPECT_GT(spm, 0);
}

TEST_F(FimTest, PaddingHasNoLoss) {
  DataConfig data = config(0);
  data.fim_rate = 1e-9;  // documents are split but practically never rearranged
  const FimTransform transform(data);
  const i32 eod = transform.tokenizer().eod();
  Tokens tokens{eod, 5, 6, eod, eod, 7};
  std::vector<u8> targets(6, 1);
  transform.apply(0, 0, tokens, targets);
  EXPECT_THAT(tokens, ElementsAre(5, 6, eod, 7, eod, eod));
  EXPECT_THAT(targets, ElementsAre(1, 1, 1, 1, 0, 0));
}

TEST_F(FimTest, ReportsTokensOutsideVocabularyWithDocument) {
  DataConfig data = config();
  IndexedDatasetWriter writer(folder_ / "d", 5000);
  for (int d = 0; d < 40; ++d) writer.add_document(Tokens{4000, 1, 2, 0});
  writer.finish();
  data.data_path = {(folder_ / "d").string()};
  data.split = "1";
  EXPECT_THAT(input_error([&] { samples_of(data); }), HasSubstr("id 4000 is outside the vocabulary"));
}

TEST_F(FimTest, ShownSampleNamesMarks) {
  DataConfig data = config();
  data.data_path = {write_dataset("d", 60)};
  data.split = "1";
  const Datasets datasets = build_train_valid_test_datasets(data, 32, 5, {12, 0, 0}, Log(1));
  const Tokenizer tokenizer(data.tokenizer_model);
  const SampleView view = show_sample(*datasets.train, 0, &tokenizer);
  EXPECT_THAT(view.text, HasSubstr(kPrefix));
  EXPECT_THAT(view.text, HasSubstr(kMiddle));
  EXPECT_THAT(view.text, HasSubstr("<eod>\n"));
}

}  // namespace
}  // namespace mcpp
