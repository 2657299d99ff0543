// Preprocessing that several ranks share, that is killed and started again.
#include "tests/megatron_cpp/end_to_end/end_to_end_on_ranks.h"

namespace mcpp {
namespace {

class PreprocessOnRanks : public EndToEndOnRanks {
 protected:
  Words preprocess(const std::string& prefix, const Words& more = {}) const {
    Words words{"preprocess", "--output_prefix=" + at(prefix),
                "--tokenizer_model=" + (root() / "tokenizer.model").string(), "--text_document=paragraph",
                "--workers=1"};
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }
  void expect_same(const std::string& a, const std::string& b) const {
    for (const char* ending : {".bin", ".idx", ".json"}) {
      EXPECT_EQ(read_text_file(at(a) + "_text_document" + ending), read_text_file(at(b) + "_text_document" + ending))
          << a << " " << b << ending;
    }
  }
};

TEST_F(PreprocessOnRanks, OneProcessKeepsPartsWhenAsked) {
  const Words input{(root() / "train.txt").string()};
  good(preprocess("one", input));
  good(preprocess("parts", plus(input, "--parts")));
  expect_same("one", "parts");
}

TEST_F(PreprocessOnRanks, FailTogetherAndNameTheLine) {
  std::string lines;
  for (int i = 0; i < 100; ++i) lines += nlohmann::json{{"text", str("line ", i)}}.dump() + "\n";
  write_file_atomic(folder_ / "good.jsonl", lines);
  write_file_atomic(folder_ / "bad.jsonl", lines + "{\"text\": 3}\n" + lines);
  const Outcome outcome = run_on(3, preprocess("d", {at("good.jsonl"), at("bad.jsonl")}));
  EXPECT_EQ(outcome.code, 2) << outcome.out << outcome.err;
  EXPECT_CONTAINS(outcome.err, "bad.jsonl:101: \"text\" is not a string");
  EXPECT_FALSE(std::filesystem::exists(at("d_text_document.bin")));
  // Mended, it goes on with the part of the other file.
  write_file_atomic(folder_ / "bad.jsonl", lines + lines);
  const Outcome mended = run_on(2, preprocess("d", {at("good.jsonl"), at("bad.jsonl")}));
  EXPECT_EQ(mended.code, 0) << mended.err;
  good(preprocess("one", {at("good.jsonl"), at("bad.jsonl")}));
  expect_same("one", "d");

  const Outcome absent = run_on(2, preprocess("e", {at("absent.txt")}));
  EXPECT_EQ(absent.code, 2);
  EXPECT_CONTAINS(absent.err, "absent.txt");
  write_file_atomic(folder_ / "empty.txt", "\n\n");
  const Outcome empty = run_on(2, preprocess("f", {at("empty.txt")}));
  EXPECT_EQ(empty.code, 2);
  EXPECT_CONTAINS(empty.err, "the input has no text for");
}

TEST_F(PreprocessOnRanks, PartsOfOtherRulesAreRefused) {
  write_file_atomic(folder_ / "bad.jsonl", "{\"text\": \"x\"}\n{}\n");
  EXPECT_EQ(run(preprocess("d", {at("bad.jsonl"), "--parts"})).code, 2);
  ASSERT_TRUE(std::filesystem::exists(at("d.parts")));
  const Outcome other = run(preprocess("d", {at("bad.jsonl"), "--skip_malformed"}));
  EXPECT_EQ(other.code, 2);
  EXPECT_CONTAINS(other.err, "made with another tokenizer or by other rules");
  std::filesystem::remove_all(at("d.parts"));
  good(preprocess("d", {at("bad.jsonl"), "--skip_malformed"}));
}

}  // namespace
}  // namespace mcpp
