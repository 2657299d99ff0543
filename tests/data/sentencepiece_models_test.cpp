// Ids of texts compared with those of the linked sentencepiece library, for models trained with random options.
#include <gtest/gtest.h>
#include <sentencepiece_processor.h>
#include <sentencepiece_trainer.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <random>

#include "data/dataset/index/indexed_dataset.h"
#include "data/preprocess/preprocess.h"
#include "data/tokenizer/tokenizer.h"
#include "tests/data/data_golden.h"
#include "tests/support/build.h"

namespace mcpp::sentencepiece_models_test {
namespace {

using test::ScratchFolder;
using Options = std::map<std::string, std::string>;

/// Parts of texts that normalization rules and segmentation treat specially.
const std::vector<std::string>& special_parts() {
  static const std::vector<std::string> parts{"  ",
                                              "    ",
                                              "\n",
                                              "\n\n    ",
                                              "\t",
                                              "\r\n",
                                              " \n ",
                                              "\xC2\xA0",
                                              "\xE3\x80\x80",
                                              "\xE2\x96\x81",
                                              " \xE2\x96\x81 ",
                                              "<sym>",
                                              "<sym><sym>",
                                              " <sym> ",
                                              "[two words]",
                                              "[two\xE2\x96\x81words]",
                                              "<ctrl>",
                                              "<s>",
                                              "<unk>",
                                              "<0x0A>",
                                              "\xEF\xAC\x81",
                                              "\xEF\xBC\xA1",
                                              "\xE2\x84\xAB",
                                              "e\xCC\x81",
                                              "a\xCC\xA5\xCC\x82",
                                              "\xCC\x81",
                                              " \xCC\x81",
                                              "\xC3\xA9",
                                              "\xE4\xB8\xAD\xE6\x96\x87",
                                              "\xF0\x9F\x98\x80",
                                              "\xEA\xB0\x80",
                                              "\xE1\x84\x80\xE1\x85\xA1",
                                              "\xE2\x80\x8B",
                                              "\xEF\xBB\xBF",
                                              std::string("\0", 1),
                                              "\x01",
                                              "\x7F",
                                              "aaaaaaa",
                                              "abababab",
                                              "ee",
                                              "\xCE\x94",
                                              "\xEF\xBF\xBD",
                                              "\xE2\x80\xA8",
                                              "\xC2\xAD",
                                              "\xEF\xB7\xBA",
                                              "\xC2\xBD"};
  return parts;
}

class RandomTexts {
 public:
  explicit RandomTexts(u32 seed) : random_(seed) {}

  u32 below(u32 bound) { return static_cast<u32>(random_() % bound); }
  bool coin() { return below(2) == 0; }
  const std::string& join_alternatives(const std::vector<std::string>& choices) {
    return choices[below(static_cast<u32>(choices.size()))];
  }

  /// About `bytes` bytes of prose, code with indentation, and unusual parts in a random share.
  std::string text(std::size_t bytes) {
    static const std::string prose = read_text_file(test::source_folder() / "data/tinyshakespeare.txt");
    const u32 rarity = coin() ? 3 : 40;
    std::string text;
    while (text.size() < bytes) {
      const std::size_t begin = prose.find(' ', below(1'000'000)) + below(2), size = 1 + below(60);
      text += prose.substr(begin, size);
      if (below(rarity) == 0) text += join_alternatives(special_parts());
      if (below(rarity) == 1) text += "\n" + std::string(below(12), ' ') + "if x:";
      if (below(4) == 0) text += ' ';
    }
    const std::size_t character = text.size() > bytes ? text.rfind(' ', bytes) : text.size();
    return character == std::string::npos ? text : text.substr(0, character);
  }

 private:
  std::mt19937 random_;
};

Options random_options(RandomTexts& random) {
  static const std::vector<std::string> kTypes{"bpe", "unigram", "unigram", "bpe", "char", "word"},
      kRules{"nmt_nfkc", "nfkc", "nmt_nfkc_cf", "nfkc_cf", "identity"};
  const auto flag = [&] { return std::string(random.coin() ? "true" : "false"); };
  Options options{{"model_type", random.join_alternatives(kTypes)},
                  {"normalization_rule_name", random.join_alternatives(kRules)},
                  {"byte_fallback", flag()},
                  {"split_by_whitespace", random.below(4) == 0 ? "false" : "true"},
                  {"allow_whitespace_only_pieces", flag()},
                  {"remove_extra_whitespaces", flag()},
                  {"add_dummy_prefix", flag()},
                  {"treat_whitespace_as_suffix", random.below(4) == 0 ? "true" : "false"},
                  {"split_digits", flag()},
                  {"character_coverage", random.coin() ? "0.98" : "1.0"},
                  {"hard_vocab_limit", "false"},
                  {"vocab_size", str(500 + random.below(1500))},
                  {"max_sentencepiece_length", str(2 + random.below(30))},
                  {"num_threads", "1"},
                  {"minloglevel", "2"}};
  if (random.coin())
    options["user_defined_symbols"] = random.coin() ? "<sym>,[two words],ee" : "<sym>,<sym><sym>,\xEF\xBC\xA1,    ";
  if (random.coin()) options["control_symbols"] = "<ctrl>";
  return options;
}

/// Returns the options in words, to find a model again.
std::string describe(const Options& options) {
  std::string text;
  for (const auto& [name, value] : options) text += " --" + name + "=" + value;
  return text;
}

bool train(const ScratchFolder& folder, RandomTexts& random, Options options) {
  std::string lines;
  for (int i = 0; i < 60; ++i) lines += random.text(500 + random.below(500)) + "\n";
  std::erase(lines, '\0');
  write_file_atomic(folder / "text.txt", lines);
  options["input"] = (folder / "text.txt").string();
  options["model_prefix"] = (folder / "random").string();
  return sentencepiece::SentencePieceTrainer::Train({options.begin(), options.end()}).ok();
}

/// Returns `text` without the characters that Tokenizer intentionally encodes differently (see keeps_space_marks()).
std::string without_marks(std::string text) {
  const std::string mark = "\xE2\x96\x81";
  for (std::size_t at = 0; (at = text.find(mark, at)) != std::string::npos;) text.erase(at, mark.size());
  return text;
}

/// Checks short and long texts; a unigram model adds scores up over the whole text, so that long ones round them.
void expect_same_ids(const Path& model, const Options& options, RandomTexts& random) {
  sentencepiece::SentencePieceProcessor processor;
  ASSERT_TRUE(processor.Load(model.string()).ok());
  const Tokenizer tokenizer(model);
  const bool reads_marks_otherwise =
      options.at("byte_fallback") == "true" && options.at("add_dummy_prefix") == "false" &&
      options.at("remove_extra_whitespaces") == "false" && options.at("normalization_rule_name") == "identity";
  std::vector<std::string> texts = special_parts();
  texts.insert(texts.end(), {"", " ", "   ", "def f(x):\n    return x\n\n\n    y", std::string(3000, 'a'),
                             std::string(2000, ' ') + "x"});
  for (int i = 0; i < 60; ++i) texts.push_back(random.text(1 + random.below(200)));
  for (const std::size_t bytes : {1500, 5000, 20'000, 150'000}) texts.push_back(random.text(bytes));
  for (const std::string& raw : texts) {
    const std::string text = reads_marks_otherwise ? without_marks(raw) : raw;
    std::vector<int> expected;
    if (!processor.Encode(text, &expected).ok()) continue;
    const std::vector<i32> ids = tokenizer.encode(text);
    const auto at = std::ranges::mismatch(ids, expected).in1 - ids.begin();
    ASSERT_TRUE(ids == expected) << "differs at token " << at << " of a text of " << text.size()
                                 << " bytes: " << testing::PrintToString(text.substr(0, 200)) << " with"
                                 << describe(options);
  }
}

/// The environment variable MCPP_SENTENCEPIECE_MODELS sets the number of models to train instead of a few,
/// MCPP_SENTENCEPIECE_SEED the first seed.
u32 from_environment(const char* name, u32 otherwise) {
  const char* value = std::getenv(name);
  return value ? static_cast<u32>(std::atoi(value)) : otherwise;
}

TEST(SentencepieceModelsTest, MatchesLibraryForRandomModels) {
  const u32 models = from_environment("MCPP_SENTENCEPIECE_MODELS", 6);
  const u32 seed = from_environment("MCPP_SENTENCEPIECE_SEED", 22);
  u32 compared = 0;
  for (u32 i = 0; i < models; ++i) {
    const ScratchFolder folder;
    RandomTexts random(seed + i);
    const Options options = random_options(random);
    if (!train(folder, random, options)) continue;  // some options cannot be combined
    ++compared;
    SCOPED_TRACE(str("seed ", seed + i));
    expect_same_ids(folder / "random.model", options, random);
  }
  EXPECT_GE(2 * compared, models) << "training works with too few of the options";
  RecordProperty("models", static_cast<int>(compared));
}

/// A document that is encoded in parts has the ids of the entire document: nothing is added around the inner parts.
TEST(SentencepieceModelsTest, PartsOfDocumentMatchIdsOfEntireDocument) {
  for (u32 seed = 0; seed < 6; ++seed) {
    const ScratchFolder folder;
    RandomTexts random(100 + seed);
    Options options = random_options(random);
    options["model_type"] = "bpe";
    options["add_dummy_prefix"] = options["byte_fallback"] = "true";
    options["split_by_whitespace"] = "true";
    options["treat_whitespace_as_suffix"] = "false";
    options["remove_extra_whitespaces"] = seed % 2 == 0 ? "true" : "false";
    options["user_defined_symbols"] = "";
    options["allow_whitespace_only_pieces"] = "false";
    if (!train(folder, random, options)) continue;
    const Tokenizer tokenizer(folder / "random.model");
    const std::string text = random.text(3000) + "\n    indented\n\n" + random.text(1000) + "end";
    const std::vector<i32> whole = tokenizer.encode(text);
    for (std::size_t split = 1; split < text.size(); ++split) {
      const bool is_after_line = text[split - 1] == '\n';
      const bool is_before_word = text[split] == ' ' && text[split - 1] != ' ';
      if (!is_after_line && !is_before_word) continue;  // pieces are split at these positions only
      const std::string_view all = text, before = all.substr(0, split);
      std::vector<i32> ids = tokenizer.encode(before, {.begins = true, .ends = false});
      const std::string_view last = before.substr(before.size() - std::min<std::size_t>(before.size(), 4));
      const std::vector<i32> rest =
          tokenizer.encode(all.substr(split), {.begins = false, .ends = true, .before = last});
      ids.insert(ids.end(), rest.begin(), rest.end());
      ASSERT_EQ(tokenizer.decode(ids), tokenizer.decode(whole)) << "split at " << split << " with" << describe(options);
    }
  }
}

TEST(SentencepieceModelsTest, PreprocessAddsOneSpaceBeforeLongDocument) {
  const ScratchFolder folder;
  RandomTexts random(7);
  Options options = random_options(random);
  options["model_type"] = "bpe";
  options["add_dummy_prefix"] = options["byte_fallback"] = options["split_by_whitespace"] = "true";
  options["remove_extra_whitespaces"] = options["treat_whitespace_as_suffix"] = "false";
  options["user_defined_symbols"] = "";
  options["normalization_rule_name"] = "identity";
  ASSERT_TRUE(train(folder, random, options));
  std::string text = read_text_file(test::source_folder() / "data/tinyshakespeare.txt");
  std::ranges::replace(text, '\n', ' ');  // two split points, before words
  write_file_atomic(folder / "long.txt", text);
  PreprocessOptions preprocess;
  preprocess.input = {(folder / "long.txt").string()};
  preprocess.output_prefix = (folder / "d").string();
  preprocess.tokenizer_model = (folder / "random.model").string();
  preprocess.append_eod = false;
  run_preprocess(preprocess, Log(1));
  const IndexedDataset dataset(folder / "d_text_document");
  std::vector<i32> ids(static_cast<std::size_t>(dataset.length(0)));
  dataset.read(0, 0, ids);
  sentencepiece::SentencePieceProcessor processor;
  ASSERT_TRUE(processor.Load(preprocess.tokenizer_model).ok());
  EXPECT_TRUE(ids == processor.EncodeAsIds(text));
}

}  // namespace
}  // namespace mcpp::sentencepiece_models_test
