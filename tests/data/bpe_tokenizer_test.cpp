// Tokenizers of the Hugging Face Hub and of tiktoken. tests/tokenizers/check.py generated the golden ids, and compares
// many more.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <regex>
#include <thread>

#include "base/json.h"
#include "base/philox.h"
#include "data/preprocess/training/tokenizer_training.h"
#include "data/tokenizer/bpe/byte_characters.h"
#include "data/tokenizer/bpe/rank_files.h"
#include "data/tokenizer/bpe/regex.h"
#include "data/tokenizer/tokenizer.h"
#include "data/tokenizer/tokenizer_file.h"
#include "tests/data/data_golden.h"

namespace mcpp {
namespace {

using test::input_error;
using test::ScratchFolder;
using testing::ElementsAre;
using testing::HasSubstr;

std::string english() {
  return read_text_file(test::source_folder() / "data/tinyshakespeare.txt").substr(0, 200000);
}

/// Returns a small tokenizer.json: the 256 bytes, <|endoftext|> with the id 0, and these merges, in GPT-2's spelling.
Json small_file(const std::vector<std::pair<std::string, std::string>>& merges) {
  BpeDescription description;
  description.pieces.emplace_back("<|endoftext|>");
  for (const char byte : bytes_by_character()) description.pieces.push_back(byte_characters(std::string(1, byte)));
  description.added.push_back({.id = 0, .content = "<|endoftext|>"});
  set_rules(description, PreTokenization::Gpt2);
  Json file = Json::parse(to_tokenizer_json(description));
  for (const auto& [left, right] : merges) {
    file["model"]["vocab"][left + right] = file["model"]["vocab"].size();
    file["model"]["merges"].push_back({left, right});
  }
  return file;
}

class BpeTokenizerTest : public testing::Test {
 protected:
  Path write(const std::string& content, const std::string& name = "tokenizer.json") const {
    write_file_atomic(folder_ / name, content);
    return folder_ / name;
  }
  Tokenizer open(const Json& file) const { return Tokenizer(write(file.dump())); }
  std::string refusal(const Json& file) const {
    return input_error([&] { open(file); });
  }
  std::vector<std::string> pieces(const Tokenizer& tokenizer, std::string_view text) const {
    std::vector<std::string> found;
    for (const i32 id : tokenizer.encode(text)) found.push_back(tokenizer.piece(id));
    return found;
  }

  ScratchFolder folder_;
};

TEST_F(BpeTokenizerTest, MatchesIdsOfReferenceLibrary) {
  for (const std::string rules : {"gpt2", "llama3", "qwen2", "metaspace"}) {
    const Path golden = test::golden_folder() / "tokenizers";
    const Tokenizer tokenizer(golden / (rules + ".json"));
    i64 count = 0;
    for (const std::string& line : split(read_text_file(golden / (rules + "_ids.jsonl")), '\n')) {
      if (line.empty()) continue;
      const Json expected = Json::parse(line);
      const auto text = expected["text"].get<std::string>();
      const auto ids = expected["ids"].get<std::vector<i32>>();
      EXPECT_EQ(tokenizer.encode(text), ids) << rules << ": " << text;
      ++count;
    }
    EXPECT_GT(count, 300);
  }
}

TEST_F(BpeTokenizerTest, MergesLowestRankFirst) {
  const Tokenizer tokenizer = open(small_file({{"b", "c"}, {"a", "b"}, {"a", "bc"}, {"\u0120", "x"}}));
  EXPECT_THAT(pieces(tokenizer, "abc ab x"), ElementsAre("abc", "\u0120", "ab", "\u0120x"));
  EXPECT_EQ(tokenizer.decode(tokenizer.encode("abc ab x")), "abc ab x");
  // Long words use a different algorithm, with the same ids.
  std::string word;
  std::vector<i32> expected;
  for (int i = 0; i < 100; ++i) {
    word += "abcb";
    for (const char* piece : {"abc", "b"}) expected.push_back(tokenizer.id(piece));
  }
  EXPECT_EQ(tokenizer.encode(word), expected);
}

TEST_F(BpeTokenizerTest, MergesOverlappingPairsFromLeft) {
  const Tokenizer tokenizer = open(small_file({{"a", "a"}}));
  for (const std::size_t size : {3U, 4U, 101U}) {
    std::vector<i32> expected(size / 2, tokenizer.id("aa"));
    if (size % 2 == 1) expected.push_back(tokenizer.id("a"));
    EXPECT_EQ(tokenizer.encode(std::string(size, 'a')), expected);
  }
}

TEST_F(BpeTokenizerTest, RoundTripsAnyText) {
  const Tokenizer tokenizer(test::golden_folder() / "tokenizers/llama3.json");
  for (u32 round = 0; round < 200; ++round) {
    std::string text;
    for (u32 i = 0; i < 30; ++i) {
      const Philox4 random = philox4x32(5, {round, i, 0, 0});
      text += byte_characters(std::string(1, static_cast<char>(random[0])));  // one or two bytes of UTF-8
      if (random[1] % 4 == 0) text += random[2] % 2 ? "\n" : "\xF0\x9F\x98\x80 ";
    }
    EXPECT_EQ(tokenizer.decode(tokenizer.encode(text)), text);
  }
}

TEST_F(BpeTokenizerTest, FindsSpecialTokensInTextAndDecodesThemToNothing) {
  const Tokenizer tokenizer = open(small_file({}));
  EXPECT_EQ(tokenizer.eod(), 0);
  EXPECT_THAT(pieces(tokenizer, "a<|endoftext|>b"), ElementsAre("a", "<|endoftext|>", "b"));
  EXPECT_EQ(tokenizer.decode(tokenizer.encode("a<|endoftext|>b")), "ab");
  EXPECT_THAT(input_error([&] { tokenizer.encode("a\xFF"); }), HasSubstr("not UTF-8 at byte 1"));
}

TEST_F(BpeTokenizerTest, ReportsTemplatePrefixWithoutInsertingIt) {
  Json file = small_file({});
  file["post_processor"] = {
      {"type", "TemplateProcessing"},
      {"single", {{{"SpecialToken", {{"id", "<|endoftext|>"}, {"type_id", 0}}}}, {{"Sequence", {}}}}},
      {"special_tokens", {{"<|endoftext|>", {{"ids", {0}}}}}}};
  const Tokenizer tokenizer = open(file);
  EXPECT_THAT(tokenizer.prefix_tokens(), ElementsAre(0));
  EXPECT_THAT(pieces(tokenizer, "a"), ElementsAre("a"));
  EXPECT_THAT(tokenizer.describe(), testing::Contains(testing::Pair("not added before texts", "<|endoftext|> (0)")));
  file["post_processor"]["special_tokens"]["<|endoftext|>"]["ids"] = {999};
  EXPECT_THAT(refusal(file), HasSubstr("the token 999 before texts"));
}

TEST_F(BpeTokenizerTest, AddedTokenDoesNotMatchInsideWords) {
  Json file = small_file({});
  file["model"]["ignore_merges"] = true;
  Json token = file["added_tokens"][0];
  token["id"] = 257, token["content"] = "word", token["single_word"] = true, token["special"] = false;
  file["added_tokens"].push_back(token);
  const Tokenizer tokenizer = open(file);
  EXPECT_THAT(pieces(tokenizer, "word."), ElementsAre("word", "."));
  EXPECT_THAT(pieces(tokenizer, "words"), ElementsAre("w", "o", "r", "d", "s"));
}

TEST_F(BpeTokenizerTest, IsThreadSafe) {
  const Tokenizer tokenizer(test::golden_folder() / "tokenizers/gpt2.json");
  const std::string text = english();
  const std::vector<i32> expected = tokenizer.encode(text);
  std::vector<std::vector<i32>> found(4);
  {
    std::vector<std::jthread> threads;
    for (auto& ids : found) threads.emplace_back([&] { ids = tokenizer.encode(text); });
  }
  for (const auto& ids : found) EXPECT_EQ(ids, expected);
}

TEST_F(BpeTokenizerTest, RejectsUnsupportedFeaturesByName) {
  const auto with = [&](const std::string& pointer, const Json& value) {
    Json file = small_file({});
    file[Json::json_pointer(pointer)] = value;
    return refusal(file);
  };
  EXPECT_THAT(with("/model/type", "WordPiece"), HasSubstr("its model is WordPiece"));
  EXPECT_THAT(with("/model/type", "Unigram"), HasSubstr("its model is Unigram"));
  EXPECT_THAT(with("/model/dropout", 0.1), HasSubstr("'dropout'"));
  EXPECT_THAT(with("/model/end_of_word_suffix", "</w>"), HasSubstr("'end_of_word_suffix'"));
  EXPECT_THAT(with("/model/new_thing", true), HasSubstr("'new_thing' is not supported"));
  EXPECT_THAT(with("/normalizer", {{"type", "Lowercase"}}), HasSubstr("Lowercase is not supported"));
  EXPECT_THAT(with("/pre_tokenizer", {{"type", "BertPreTokenizer"}}), HasSubstr("BertPreTokenizer is not supported"));
  EXPECT_THAT(with("/pre_tokenizer/pretokenizers/0/behavior", "Sideways"), HasSubstr("the behavior Sideways"));
  EXPECT_THAT(with("/decoder", {{"type", "WordPiece"}}), HasSubstr("WordPiece is not supported"));
  const Json byte_level{{"type", "ByteLevel"}}, digits{{"type", "Digits"}};
  EXPECT_THAT(with("/pre_tokenizer/pretokenizers", {byte_level, digits}), HasSubstr("after ByteLevel"));
}

TEST_F(BpeTokenizerTest, RejectsDamagedFilesByName) {
  const std::string whole = small_file({{"a", "b"}}).dump();
  EXPECT_THAT(input_error([&] { Tokenizer(write(whole.substr(0, whole.size() / 2))); }), HasSubstr("not valid JSON"));
  EXPECT_THAT(input_error([&] { Tokenizer(write("{\"model\": {\"type\": \"\xFF\"}}")); }), HasSubstr("not valid JSON"));
  Json file = small_file({{"a", "b"}});
  file["model"]["merges"].push_back({"a", "nothing"});
  EXPECT_THAT(refusal(file), HasSubstr("merge 1, of \"a\" and \"nothing\", needs the piece \"nothing\""));
  file = small_file({{"a", "b"}});
  file["model"]["merges"].push_back("abc");
  EXPECT_THAT(refusal(file), HasSubstr("merge 1 is not two pieces"));
  file = small_file({{"a", "b"}});
  file["model"]["vocab"]["ab"] = 300;
  EXPECT_THAT(refusal(file), HasSubstr("no piece has the id 257"));
  file["model"]["vocab"]["ab"] = 5;
  EXPECT_THAT(refusal(file), HasSubstr("the id 5 belongs to two pieces"));
  file["model"]["vocab"]["ab"] = 4'000'000'000;
  EXPECT_THAT(refusal(file), HasSubstr("the id of \"ab\" is 4000000000"));
  file["model"]["vocab"]["ab"] = -1;
  EXPECT_THAT(refusal(file), HasSubstr("the id of \"ab\" is -1"));
  file = small_file({});
  file["added_tokens"][0]["id"] = 257;
  EXPECT_THAT(refusal(file), HasSubstr("has two ids"));
  file = small_file({});
  file["added_tokens"].push_back(file["added_tokens"][0]);
  EXPECT_THAT(refusal(file), HasSubstr("is listed twice"));
  file = small_file({});
  file["model"]["vocab"].erase("a");
  EXPECT_THAT(refusal(file), HasSubstr("no piece has the id"));
  file = small_file({});
  file["model"]["vocab"]["other"] = file["model"]["vocab"]["a"];
  file["model"]["vocab"].erase("a");
  EXPECT_THAT(refusal(file), HasSubstr("no piece for the byte 0x61"));
  file = small_file({});
  file["added_tokens"] = Json::array();
  file["model"]["vocab"]["other"] = 0;
  file["model"]["vocab"].erase("<|endoftext|>");
  EXPECT_THAT(refusal(file), HasSubstr("has no token that ends documents"));
}

TEST_F(BpeTokenizerTest, StopsCatastrophicPatterns) {
  Json file = small_file({});
  auto& pattern = file["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"];
  pattern = "(a|aa)+$";
  const Tokenizer tokenizer = open(file);
  EXPECT_THAT(input_error([&] { tokenizer.encode(std::string(64, 'a') + "c"); }),
              HasSubstr("exceeds the match limit on the text"));
  pattern = "(unbalanced";
  EXPECT_THAT(refusal(file), HasSubstr("is not a regular expression"));
  for (const char* foreign :
       {"\\bword", "(?i)x", "[[:alpha:]]", "[a&&b]", "x{2}+", "\\p{Emoji}", "\\1", "[^\\S]", "\\h", "x\\"}) {
    pattern = foreign;
    EXPECT_THAT(refusal(file), HasSubstr("is not supported")) << foreign;
  }
}

TEST_F(BpeTokenizerTest, RankFilesRequireKnownRules) {
  const auto ranks = [](i64 count) {
    std::string text;  // base64 of one byte, or of two
    constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (i64 i = 0; i < count; ++i) {
      const i64 bits = i < 256 ? i << 4 : (i - 256 + 97 * 256) << 2;
      text += i < 256 ? str(kDigits[bits >> 6 & 63], kDigits[bits & 63], "== ", i, "\n")
                      : str(kDigits[bits >> 12 & 63], kDigits[bits >> 6 & 63], kDigits[bits & 63], "= ", i, "\n");
    }
    return text;
  };
  const Path path = write(ranks(300), "tokenizer.model");
  EXPECT_THAT(input_error([&] { Tokenizer{path}; }), HasSubstr("not one of 50256 (GPT-2), 100256 (cl100k)"));
  const Tokenizer tokenizer(write(convert_to_tokenizer_json(path, PreTokenization::Cl100k)));
  EXPECT_EQ(tokenizer.vocab_size(), 301);
  EXPECT_EQ(tokenizer.piece(tokenizer.eod()), "<|endoftext|>");
  EXPECT_EQ(tokenizer.decode(tokenizer.encode("a\x01 na\xC3\xAFve")), "a\x01 na\xC3\xAFve");
  const Tokenizer known(write(ranks(50256), "known.txt"));
  EXPECT_EQ(known.eod(), 50256);
  for (const auto& [content, message] :
       std::vector<std::pair<std::string, std::string>>{{"YQ== 0\nYg==\n", ":2: must have bytes in base64"},
                                                        {"YQ== 0\nYg== 0\n", ":2: the id 0 appears twice"},
                                                        {"YQ== 0\nYg== 7\n", ":2: the id 7 leaves smaller ones"},
                                                        {"YQ== 0\nY*== 1\n", ":2: must have bytes in base64"}}) {
    EXPECT_THAT(input_error([&] { Tokenizer{write(content, "bad.tiktoken")}; }), HasSubstr(message));
  }
}

TEST_F(BpeTokenizerTest, SavesVocabularyAndMergesAsOneFile) {
  const Json file = small_file({{"a", "b"}});
  const Path vocab = write(file["model"]["vocab"].dump(), "vocab.json");
  EXPECT_THAT(input_error([&] { Tokenizer{vocab}; }), HasSubstr("merges.txt: does not exist"));
  const Path merges = write("#version: 0.2\na b\n", "merges.txt");
  for (const Path& path : {vocab, merges}) {
    const Tokenizer tokenizer(path);
    EXPECT_EQ(tokenizer.eod(), 0);
    EXPECT_THAT(pieces(tokenizer, "ab"), ElementsAre("ab"));
    const Tokenizer kept(write(read_tokenizer_file(path), "kept"));
    EXPECT_EQ(kept.checksum(), tokenizer.checksum());
  }
  EXPECT_EQ(find_tokenizer_file(folder_.path()), vocab);
  write("a\n", "merges.txt");
  EXPECT_THAT(input_error([&] { Tokenizer{vocab}; }), HasSubstr("is not two pieces"));
}

TEST_F(BpeTokenizerTest, TrainingIsIndependentOfThreads) {
  TokenizerOptions options;
  options.input = {write(english(), "text.txt").string()};
  options.output = (folder_ / "tokenizer.json").string();
  options.model_type = TokenizerModel::BpeBytes;
  options.vocab_size = 1000;
  options.num_threads = 1;
  train_tokenizer(options, Log(1));
  const std::string one = read_text_file(options.output);
  options.num_threads = 5;
  train_tokenizer(options, Log(1));
  EXPECT_EQ(read_text_file(options.output), one);
  const Tokenizer tokenizer(options.output);
  EXPECT_EQ(tokenizer.vocab_size(), 1000);
  EXPECT_EQ(tokenizer.decode(tokenizer.encode(english())), english());
  options.vocab_size = 100;
  EXPECT_THAT(input_error([&] { train_tokenizer(options, Log(1)); }), HasSubstr("need 257"));
  write("so few words", "text.txt");
  options.vocab_size = 1000;
  EXPECT_THAT(input_error([&] { train_tokenizer(options, Log(1)); }), HasSubstr("yields only 257 pieces"));
}

TEST_F(BpeTokenizerTest, NamesTruncatedFileForEveryLength) {
  const std::string whole = small_file({{"a", "b"}}).dump();
  for (const std::size_t size : {std::size_t{2}, whole.size() / 10, whole.size() / 4, whole.size() - 1}) {
    const std::string error = input_error([&] { Tokenizer(write(whole.substr(0, size))); });
    EXPECT_THAT(error, HasSubstr("not valid JSON")) << size;
    EXPECT_THAT(error, testing::Not(HasSubstr("merges.txt"))) << size;
  }
  // Here the members come before "model".
  const std::string head = R"({"version": "1.0", "added_tokens": [{"id": 0, "content": "<s>"}], "norm)";
  EXPECT_THAT(input_error([&] { Tokenizer(write(head)); }), HasSubstr("not valid JSON"));
}

TEST_F(BpeTokenizerTest, StopsNormalizerThatGrowsTextsWithoutBound) {
  Json file = small_file({{"a", "b"}});
  const Json twice = {{"type", "Replace"}, {"pattern", {{"String", "a"}}}, {"content", "aa"}};
  file["normalizer"] = {{"type", "Sequence"}, {"normalizers", std::vector<Json>(4, twice)}};
  EXPECT_EQ(Tokenizer(write(file.dump())).encode("xax").size(), 18U);
  file["normalizer"] = {{"type", "Sequence"}, {"normalizers", std::vector<Json>(60, twice)}};
  const Tokenizer tokenizer(write(file.dump()));
  EXPECT_THAT(input_error([&] { tokenizer.encode("xax"); }),
              testing::AllOf(HasSubstr("tokenizer.json"), HasSubstr("normalizer expands a text of 3 bytes")));
}

TEST(BpeTokenizerPrefixTest, AddsNothingBeforeContinuedDocument) {
  std::string file = read_text_file(test::golden_folder() / "tokenizers/metaspace.json");
  for (const char* scheme : {"first", "always"}) {
    const ScratchFolder folder;
    write_file_atomic(folder / "tokenizer.json", std::regex_replace(file, std::regex("\"prepend_scheme\": *\"[a-z]*\""),
                                                                    str("\"prepend_scheme\": \"", scheme, "\"")));
    const Tokenizer tokenizer(folder / "tokenizer.json");
    const std::vector<i32> whole = tokenizer.encode("speak, speak");
    std::vector<i32> parts = tokenizer.encode("speak,", {.begins = true, .ends = false});
    const std::vector<i32> rest = tokenizer.encode(" speak", {.begins = false});
    parts.insert(parts.end(), rest.begin(), rest.end());
    EXPECT_EQ(parts, whole) << scheme;
    EXPECT_NE(tokenizer.encode("k", {.begins = false}), tokenizer.encode("k")) << scheme;
  }
}

TEST(ByteBpeTrainerTest, ResolvesTiesByLowestIds) {
  // Both pairs occur three times; "a" comes before "x".
  const BpeDescription trained =
      train_byte_bpe({{"xy", 3}, {"ab", 3}, {"abab", 1}, {"zz", 1}}, {"<|endoftext|>"}, 260, 2);
  ASSERT_EQ(trained.merges.size(), 2U);
  EXPECT_EQ(trained.pieces.size(), 259U);
  EXPECT_EQ(trained.pieces[257], "ab");
  EXPECT_EQ(trained.pieces[258], "xy");
}

TEST(RegexTest, MatchesOniguruma) {
  const auto words = [](const std::string& pattern, std::string_view text) {
    const Regex regex(pattern, "test");
    RegexMemory memory;
    RegexMatches matches(regex, text, memory);
    std::vector<std::string> found;
    while (const auto match = matches.next()) found.emplace_back(text.substr(match->begin, match->end - match->begin));
    return found;
  };
  EXPECT_THAT(words("\\s+", "a\u180Eb\u0085\u2003c"), ElementsAre("\u0085\u2003"));
  EXPECT_THAT(words("(?i:'s)", "'s'S'\u017F"), ElementsAre("'s", "'S", "'\u017F"));
  EXPECT_THAT(words("\\w+", "a_\u0301\u0661-b"), ElementsAre("a_\u0301\u0661", "b"));
  EXPECT_THAT(words("x$", "x\nx"), ElementsAre("x", "x"));
  EXPECT_THAT(words("b*", "abbc"), ElementsAre("", "bb", ""));
  EXPECT_THAT(words("[\\u0041-\\x43]", "ABCD"), ElementsAre("A", "B", "C"));
}

}  // namespace
}  // namespace mcpp
