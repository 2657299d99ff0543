#include "data/tokenizer/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sentencepiece_processor.h>
#include <sentencepiece_trainer.h>

#include <regex>

#include "base/philox.h"
#include "base/utf8.h"
#include "data/preprocess/training/tokenizer_training.h"
#include "tests/data/data_golden.h"
#include "tests/support/build.h"

namespace mcpp::tokenizer_test {
namespace {

using test::input_error;
using test::ScratchFolder;
using testing::HasSubstr;

std::string english() {
  return read_text_file(test::source_folder() / "data/tinyshakespeare.txt").substr(0, 200000);
}

TokenizerOptions options_for(const ScratchFolder& folder, const std::string& text) {
  write_file_atomic(folder / "text.txt", text);
  TokenizerOptions options;
  options.input = {(folder / "text.txt").string()};
  options.output = (folder / "tokenizer.model").string();
  options.vocab_size = 1000;
  return options;
}

Tokenizer train(const TokenizerOptions& options) {
  train_tokenizer(options, Log(1));
  return Tokenizer(options.output);
}

std::string stream(const Tokenizer& tokenizer, const std::vector<i32>& ids) {
  StreamDecoder decoder(tokenizer);
  std::string text;
  for (const i32 id : ids) {
    const std::string part = decoder.add(id);
    EXPECT_EQ(find_invalid_utf8(part), -1);
    text += part;
  }
  return text + decoder.finish();
}

/// Returns text with runs of spaces, long words, and characters that no piece contains.
std::string with_irregular_spaces(const std::string& text) {
  std::string odd;
  for (u32 i = 0; odd.size() < 20000; ++i) {
    const Philox4 random = philox4x32(5, {i, 0, 0, 0});
    odd += text.substr(random[0] % 100'000, random[1] % 40);
    if (random[2] % 4 == 0) odd.append(random[3] % 5, ' ');
    if (random[2] % 64 == 1) odd.append(100, 'a');
    if (random[2] % 16 == 2) odd += "\xE4\xB8\xAD\xE6\x96\x87";
  }
  return odd + "end";
}

class TokenizerTypesTest : public testing::TestWithParam<TokenizerModel> {};

TEST_P(TokenizerTypesTest, RoundTripsAnyText) {
  const ScratchFolder folder;
  TokenizerOptions options = options_for(folder, english());
  options.model_type = GetParam();
  const Tokenizer tokenizer = train(options);
  EXPECT_EQ(tokenizer.vocab_size(), 1000);
  std::vector<std::string> texts{
      "",
      " ",
      "\n",
      "  two  spaces,   three\n\n\n  and lines \r\n\tor tabs\t\t",
      "na\xC3\xAFve \xE4\xB8\xAD\xE6\x96\x87 \xF0\x9F\x98\x80 \xE2\x96\x81literal\xE2\x96\x81",
      "<eod> <unk> </s> <0x0A> <s>",
      std::string("nul\0byte", 8),
      "\xE2\x96\x85 \xE2\x80\xA8 \xC2\xA0 \xEF\xBB\xBF",
      english()};
  for (u32 round = 0; round < 50; ++round) {  // random code points of all planes
    std::string text;
    for (u32 i = 0; i < 40; ++i) {
      const Philox4 random = philox4x32(3, {round, i, 0, 0});
      const u32 c = random[0] % 3 ? 32 + random[1] % 96 : 0x80 + random[2] % 0xFF00;
      if (c < 0x80)
        text += static_cast<char>(c);
      else if (c < 0x800)
        text += {static_cast<char>(0xC0 | c >> 6), static_cast<char>(0x80 | (c & 63))};
      else if (c < 0xD800 || c > 0xDFFF)
        text += {static_cast<char>(0xE0 | c >> 12), static_cast<char>(0x80 | (c >> 6 & 63)),
                 static_cast<char>(0x80 | (c & 63))};
    }
    texts.push_back(text);
  }
  for (const std::string& text : texts) {
    const std::vector<i32> ids = tokenizer.encode(text);
    EXPECT_EQ(tokenizer.decode(ids), text);
    EXPECT_EQ(stream(tokenizer, ids), text);
    EXPECT_EQ(std::count(ids.begin(), ids.end(), tokenizer.eod()), 0) << "text must not be encoded to <eod>";
    EXPECT_EQ(std::count(ids.begin(), ids.end(), 0), 0) << "no token may be unknown";
  }
}

TEST_P(TokenizerTypesTest, LongTextMatchesSentencepieceIds) {
  const ScratchFolder folder;
  TokenizerOptions options = options_for(folder, english());
  options.model_type = GetParam();
  const Tokenizer tokenizer = train(options);
  sentencepiece::SentencePieceProcessor processor;
  ASSERT_TRUE(processor.Load(options.output).ok());
  for (const std::string& text : {english().substr(0, 20000), std::string(5000, ' ') + english().substr(0, 3000),
                                  with_irregular_spaces(english())}) {
    std::vector<int> expected;
    ASSERT_TRUE(processor.Encode(text, &expected).ok());
    EXPECT_EQ(tokenizer.encode(text), expected);
  }
}

/// Without byte pieces, U+2581 is treated as an additional space of a run of spaces.
TEST_P(TokenizerTypesTest, SpaceMarksJoinAdjacentSpaces) {
  const ScratchFolder folder;
  std::string indented;
  for (int i = 0; i < 300; ++i)
    indented += std::string(static_cast<std::size_t>(4 * (i % 5)), ' ') + "for word in words\n";
  TokenizerOptions options = options_for(folder, english() + indented);
  options.model_type = GetParam();
  options.byte_fallback = false;
  const Tokenizer tokenizer = train(options);
  sentencepiece::SentencePieceProcessor processor;
  ASSERT_TRUE(processor.Load(options.output).ok());
  for (const char* start : {"", "x", "\xEF\xBB\xBF", " "}) {
    for (std::size_t before = 0; before < 9; ++before) {
      for (std::size_t after = 0; after < 12; ++after) {
        const std::string text =
            start + std::string(before, ' ') + "\xE2\x96\x81" + std::string(after, ' ') + "for word in words";
        std::vector<int> expected;
        ASSERT_TRUE(processor.Encode(text, &expected).ok());
        EXPECT_EQ(tokenizer.encode(text), expected) << text;
      }
    }
  }
}

/// The model is like Llama's: it adds a space before every text, and its end-of-sentence piece is <eod>.
TEST(TokenizerTest, SupportsForeignModelsWithPrefixSpace) {
  const ScratchFolder folder;
  options_for(folder, english());
  ASSERT_TRUE(sentencepiece::SentencePieceTrainer::Train({{"input", (folder / "text.txt").string()},
                                                          {"model_prefix", (folder / "llama").string()},
                                                          {"model_type", "bpe"},
                                                          {"vocab_size", "1000"},
                                                          {"byte_fallback", "true"},
                                                          {"normalization_rule_name", "identity"},
                                                          {"remove_extra_whitespaces", "false"},
                                                          {"minloglevel", "2"}})
                  .ok());
  const Tokenizer tokenizer(folder / "llama.model");
  EXPECT_EQ(tokenizer.piece(tokenizer.eod()), "</s>");
  sentencepiece::SentencePieceProcessor processor;
  ASSERT_TRUE(processor.Load((folder / "llama.model").string()).ok());
  for (const std::string& text :
       {std::string("Speak,  speak.\nYes"), english().substr(0, 20000), str(english().substr(0, 1020), "together "),
        str(" ", with_irregular_spaces(english())), str(with_irregular_spaces(english()), "  ")}) {
    std::vector<int> expected;
    ASSERT_TRUE(processor.Encode(text, &expected).ok());
    EXPECT_EQ(tokenizer.encode(text), expected);
    EXPECT_EQ(tokenizer.decode(expected), text);
    EXPECT_EQ(stream(tokenizer, expected), text);
  }
}

TEST_P(TokenizerTypesTest, TrainingIsReproducible) {
  const ScratchFolder folder;
  TokenizerOptions options = options_for(folder, english());
  options.model_type = GetParam();
  const std::string first = train(options).checksum();
  EXPECT_EQ(train(options).checksum(), first);
}

/// Passes sentences to the library unchanged.
class LineIterator : public sentencepiece::SentenceIterator {
 public:
  explicit LineIterator(const std::vector<std::string>& all) : all_(all) {}
  bool done() const override { return next_ == all_.size(); }
  void Next() override { ++next_; }
  const std::string& value() const override { return all_[next_]; }
  sentencepiece::util::Status status() const override { return {}; }

 private:
  const std::vector<std::string>& all_;
  std::size_t next_ = 0;
};

/// Splits `text` before and after each line end: newlines with the preceding ASCII punctuation, and the spaces before
/// it.
std::vector<std::string> cut_at_line_ends(const std::string& text) {
  const std::regex line_end("( +[!-/:-@\\[-`{-~]*|[!-/:-@\\[-`{-~]*)\n+");
  std::vector<std::string> parts;
  auto rest = text.begin();
  for (std::sregex_iterator end(text.begin(), text.end(), line_end); end != std::sregex_iterator(); ++end) {
    for (const std::string& part : {std::string(rest, (*end)[0].first), end->str()}) {
      if (!part.empty()) parts.push_back(part);
    }
    rest = (*end)[0].second;
  }
  if (rest != text.end()) parts.emplace_back(rest, text.end());
  return parts;
}

TEST(TokenizerTrainingTest, CountedWordsMatchSentencepiecePieces) {
  const ScratchFolder folder;
  const std::string text = "\n\nbegins\n" + english() +
                           "  <eod> two  spaces \n \n  in  -- ...\n  na\xC3\xAFve \xE4\xB8\xAD\xE6\x96\x87\n\n  ends ";
  const Tokenizer ours = train(options_for(folder, text));
  const std::vector<std::string> parts = cut_at_line_ends(text);
  LineIterator sentences(parts);
  std::string model;
  ASSERT_TRUE(sentencepiece::SentencePieceTrainer::Train({{"model_type", "bpe"},
                                                          {"vocab_size", "1000"},
                                                          {"byte_fallback", "true"},
                                                          {"normalization_rule_name", "identity"},
                                                          {"remove_extra_whitespaces", "false"},
                                                          {"add_dummy_prefix", "false"},
                                                          {"allow_whitespace_only_pieces", "true"},
                                                          {"unk_id", "0"},
                                                          {"eos_id", "1"},
                                                          {"eos_piece", "<eod>"},
                                                          {"bos_id", "-1"},
                                                          {"pad_id", "-1"},
                                                          {"minloglevel", "2"}},
                                                         &sentences, &model)
                  .ok());
  sentencepiece::SentencePieceProcessor theirs;
  ASSERT_TRUE(theirs.LoadFromSerializedProto(model).ok());
  ASSERT_EQ(ours.vocab_size(), theirs.GetPieceSize());
  for (i32 id = 0; id < theirs.GetPieceSize(); ++id) EXPECT_EQ(ours.piece(id), theirs.IdToPiece(id)) << id;
}

/// The library ignores pieces that always continue in the same way, such as the space after a word.
TEST(TokenizerTrainingTest, UnigramModelLearnsWordsFollowedBySpaces) {
  const ScratchFolder folder;
  std::string text;  // one line
  for (u32 i = 0; i < 150; ++i) {
    const Philox4 random = philox4x32(7, {i, 0, 0, 0});
    text += " remarkable ";
    for (std::size_t k = 0; k < 3; ++k) text += static_cast<char>('a' + random[k] % 26);
  }
  TokenizerOptions options = options_for(folder, text);
  options.model_type = TokenizerModel::Unigram;
  options.vocab_size = 300;
  EXPECT_GE(train(options).id("\xE2\x96\x81remarkable"), 0);
}

TEST(TokenizerTrainingTest, BpeModelIsIndependentOfThreads) {
  const ScratchFolder folder;
  std::string text;  // several pieces of input
  while (text.size() < 3'000'000) text += english();
  TokenizerOptions options = options_for(folder, text);
  options.num_threads = 1;
  train_tokenizer(options, Log(1));
  const std::string one = read_text_file(options.output);
  options.num_threads = 5;
  train_tokenizer(options, Log(1));
  EXPECT_EQ(read_text_file(options.output), one);
}

INSTANTIATE_TEST_SUITE_P(Types, TokenizerTypesTest, testing::Values(TokenizerModel::Unigram, TokenizerModel::Bpe));

/// Late detection could waste hours of training.
TEST(TokenizerTest, UnwritableOutputIsReportedBeforeTraining) {
  const ScratchFolder folder;
  TokenizerOptions options = options_for(folder, english());
  options.vocab_size = 1'000'000;  // training itself would fail later
  write_file_atomic(folder / "file", "");
  options.output = (folder / "file" / "tokenizer.model").string();
  EXPECT_THAT(input_error([&] { train(options); }), HasSubstr((folder / "file").string()));
  options.output = "/dev/null";
  EXPECT_THAT(input_error([&] { train(options); }), HasSubstr("/dev/null is a device"));
}

TEST(TokenizerTest, LooksUpPieces) {
  const ScratchFolder folder;
  const Tokenizer tokenizer = train(options_for(folder, english()));
  EXPECT_EQ(tokenizer.piece(tokenizer.eod()), "<eod>");
  EXPECT_EQ(tokenizer.id("<eod>"), tokenizer.eod());
  EXPECT_EQ(tokenizer.id("no such piece"), -1);
  EXPECT_EQ(tokenizer.decode(std::vector<i32>{tokenizer.eod()}), "");
  EXPECT_THAT(input_error([&] { tokenizer.piece(1000); }), HasSubstr("0 .. 999"));
  EXPECT_THAT(input_error([&] { tokenizer.decode(std::vector<i32>{-1}); }), HasSubstr("token id -1"));
  EXPECT_GE(tokenizer.id(":\n"), 0) << "newlines are learned with the preceding characters";
}

TEST(TokenizerTest, HoldsBackIncompleteCharacters) {
  const ScratchFolder folder;
  const Tokenizer tokenizer = train(options_for(folder, english()));
  StreamDecoder decoder(tokenizer);
  EXPECT_EQ(decoder.add(tokenizer.id("<0xF0>")), "");
  EXPECT_EQ(decoder.add(tokenizer.id("<0x9F>")), "");
  EXPECT_EQ(decoder.add(tokenizer.id("<0x98>")), "");
  EXPECT_EQ(decoder.add(tokenizer.id("<0x80>")), "\xF0\x9F\x98\x80");
  EXPECT_EQ(decoder.add(tokenizer.id("<0xC3>")), "");
  EXPECT_EQ(decoder.finish(), "\xEF\xBF\xBD");
}

TEST(TokenizerTest, LocatesInvalidText) {
  const ScratchFolder folder;
  const Tokenizer tokenizer = train(options_for(folder, english()));
  EXPECT_THAT(input_error([&] { tokenizer.encode("one\ntwo\xFF"); }), HasSubstr("byte 7 (line 2)"));
  TokenizerOptions options = options_for(folder, "one\ntwo\xFFthree\n");
  EXPECT_THAT(input_error([&] { train(options); }), HasSubstr("text.txt:2: not UTF-8 at byte 7"));
}

TEST(TokenizerTest, ExplainsUnusableModels) {
  const ScratchFolder folder;
  EXPECT_THAT(input_error([&] { Tokenizer{folder / "none.model"}; }), HasSubstr("does not exist"));
  write_file_atomic(folder / "bad.model", "this is not a model");
  EXPECT_THAT(input_error([&] { Tokenizer{folder / "bad.model"}; }), HasSubstr("not a sentencepiece model"));
  write_file_atomic(folder / "empty.model", "");
  EXPECT_THAT(input_error([&] { Tokenizer{folder / "empty.model"}; }), HasSubstr("not a sentencepiece model"));
}

TEST(TokenizerTrainingTest, ExplainsInvalidSizesAndMissingText) {
  const ScratchFolder folder;
  TokenizerOptions options = options_for(folder, "");
  EXPECT_THAT(input_error([&] { train(options); }), HasSubstr("no text"));
  options = options_for(folder, "a few words only\n");
  EXPECT_THAT(input_error([&] { train(options); }), HasSubstr("vocab_size 1000 is too large for this text"));
  options.vocab_size = 100;
  EXPECT_THAT(input_error([&] { train(options); }), HasSubstr("vocab_size 100 is too small"));
  options.input = {(folder / "nothing").string()};
  EXPECT_THAT(input_error([&] { train(options); }), HasSubstr("nothing"));
  EXPECT_FALSE(std::filesystem::exists(folder / "tokenizer.model"));
}

TEST(TokenizerTrainingTest, DropsNoText) {
  // Words that occur only in long lines, or next to characters reserved by sentencepiece, must still be learned.
  const ScratchFolder folder;
  std::string text;
  for (int i = 0; i < 3000; ++i) text += "longlongline ";
  for (int i = 0; i < 300; ++i)
    text +=
        "\n\ttabbedword\n\xE2\x96\x85"
        "blockword\n" +
        std::string("nulword\0\n", 9);
  TokenizerOptions options = options_for(folder, text);
  options.vocab_size = 330;
  const Tokenizer tokenizer = train(options);
  for (const char* word : {"longlongline", "tabbedword", "blockword", "nulword"}) {
    EXPECT_LE(tokenizer.encode(word).size(), 2u) << word;
  }
}

}  // namespace
}  // namespace mcpp::tokenizer_test
