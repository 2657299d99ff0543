// Detection of JSON lines files, and the allowed contents of their lines.
#include <gmock/gmock.h>

#include "base/check.h"
#include "data/dataset/index/indexed_dataset.h"
#include "data/preprocess/input_files.h"
#include "data/tokenizer/tokenizer.h"
#include "tests/data/preprocess_fixture.h"

namespace mcpp::input_format_test {
namespace {

using test::input_error;
using testing::HasSubstr;

constexpr const char* kJsonLines = "{\"text\": \"alpha beta\", \"id\": 1}\n{\"text\": \"gamma\"}\n";

class InputFormatTest : public test::PreprocessFixture {
 protected:
  std::vector<std::string> documents(const std::string& prefix = "d_text_document") {
    const IndexedDataset dataset(out_ / prefix);
    const Tokenizer tokenizer{Path(model())};
    std::vector<std::string> texts;
    for (i64 i = 0; i < dataset.num_sequences(); ++i) {
      std::vector<i32> ids(static_cast<std::size_t>(dataset.length(i)));
      dataset.read(i, 0, ids);
      texts.push_back(tokenizer.decode(ids));
    }
    return texts;
  }
  std::vector<std::string> preprocessed(const std::string& path) {
    run_preprocess(options({path}), Log(1));
    return documents();
  }
};

TEST_F(InputFormatTest, RecognizesJsonLinesByName) {
  for (const char* name : {"a.jsonl", "a.ndjson", "A.JSONL", "a.json", "a.Json", "a.jsonl.gz", "a.ndjson.ZST",
                           "a.jsonl.zstd", "a.JSON.gzip"})
    EXPECT_TRUE(is_json_lines(name, InputFormat::Auto)) << name;
  for (const char* name : {"a.txt", "jsonl", "a.jsonl.txt", "a"}) EXPECT_FALSE(is_json_lines(name, InputFormat::Auto));
  EXPECT_FALSE(is_json_lines("a.jsonl", InputFormat::Text));
  EXPECT_TRUE(is_json_lines("a.txt", InputFormat::JsonLines));
}

TEST_F(InputFormatTest, RecognizesJsonLinesByContent) {
  const std::vector<std::string> two{"alpha beta", "gamma"};
  for (const char* name : {"part-00000", "a.ndjson", "a.JSONL", "a.txt", "a.jsonl.part"})
    EXPECT_EQ(preprocessed(file(name, kJsonLines)), two) << name;
  EXPECT_EQ(preprocessed(gzip_file("packed", kJsonLines)), two);
  EXPECT_EQ(preprocessed(file("bom", std::string("\xEF\xBB\xBF") + kJsonLines)), two);
  EXPECT_EQ(preprocessed(file("blank", std::string("\n  \n") + kJsonLines)), two);
  EXPECT_EQ(preprocessed(file("long", "{\"text\": \"alpha beta\", \"x\": \"" + std::string(1 << 20, 'x') +
                                          "\"}\n{\"text\": \"gamma\"}")),
            two);
  EXPECT_THAT(input_error([&] { preprocessed(file("broken", std::string("{\"text\": \"a\n") + kJsonLines)); }),
              HasSubstr("broken:1: malformed JSON"));
}

TEST_F(InputFormatTest, ReadsOtherTextsThatBeginWithBraceAsText) {
  for (const std::string text :
       {"{\n  \"text\": \"pretty\"\n}\n", "{}\n{}\n", "{ int x; }\n", "{\"a\": 1} and more\n", "[1]\n"})
    EXPECT_EQ(preprocessed(file("a.txt", text)), std::vector<std::string>{text});
}

TEST_F(InputFormatTest, RejectsOtherJsonUnlessFormatIsText) {
  for (const std::string text : {"{\n  \"text\": \"pretty\"\n}\n", "[{\"text\": \"a\"},\n {\"text\": \"b\"}]\n"}) {
    EXPECT_THAT(input_error([&] { preprocessed(file("part-00000", text)); }), HasSubstr("--input_format=text"));
    EXPECT_EQ(preprocessed(file("a.txt", text)), std::vector<std::string>{text});
  }
}

TEST_F(InputFormatTest, FollowsInputFormatOption) {
  PreprocessOptions o = options({file("a.jsonl", kJsonLines)});
  o.input_format = InputFormat::Text;
  run_preprocess(o, Log(1));
  EXPECT_EQ(documents(), std::vector<std::string>{kJsonLines});
  o.input = {file("prose.txt", "some prose\n")};
  o.input_format = InputFormat::JsonLines;
  EXPECT_THAT(input_error([&] { run_preprocess(o, Log(1)); }), HasSubstr("prose.txt:1: malformed JSON"));
}

TEST_F(InputFormatTest, RejectsJsonKeysForPlainText) {
  PreprocessOptions o = options({file("a.txt", "some prose\n")});
  o.json_keys = {"body"};
  EXPECT_THAT(input_error([&] { run_preprocess(o, Log(1)); }),
              testing::AllOf(HasSubstr("--json_keys=body"), HasSubstr("plain text")));
  TokenizerOptions training;
  training.input = o.input;
  training.output = (out_ / "tokenizer.model").string();
  training.json_keys = {"body"};
  EXPECT_THAT(input_error([&] { train_tokenizer(training, Log(1)); }), HasSubstr("--json_keys=body"));
}

TEST_F(InputFormatTest, AcceptsNumbersThatPythonWrites) {
  const std::string lines = R"({"score": NaN, "text": "one"})"
                            "\n"
                            R"({"score": Infinity, "text": "two NaN"})"
                            "\n"
                            R"({"score": [-Infinity, {"x": NaN}], "text": "three \"Infinity\""})"
                            "\n"
                            R"({"id": 123456789012345678901234567890, "x": 1e999, "y": -1.5E+9999, "text": "four"})"
                            "\n";
  const std::vector<std::string> expected{"one", "two NaN", "three \"Infinity\"", "four"};
  EXPECT_EQ(preprocessed(file("a.jsonl", lines)), expected);
  EXPECT_EQ(preprocessed(file("named-otherwise", lines)), expected);
}

TEST_F(InputFormatTest, RejectsOtherMalformedNumbers) {
  for (const char* value : {"NaNs", "nan", "Inf", "+1", "01", "1e", ".5", "--Infinity", "1e999x"}) {
    const std::string line = str("{\"x\": ", value, ", \"text\": \"a\"}\n");
    EXPECT_THAT(input_error([&] { preprocessed(file("a.jsonl", line)); }), HasSubstr("a.jsonl:1: malformed JSON"))
        << value;
  }
  EXPECT_THAT(input_error([&] { preprocessed(file("a.jsonl", "{\"text\": NaN}\n")); }), HasSubstr("is not a string"));
}

TEST_F(InputFormatTest, RejectsPipeWithJsonLines) {
  TextChunk chunk;
  chunk.text = kJsonLines;
  EXPECT_THAT(input_error([&] { parse_chunk("/dev/fd/63", chunk, {}); }), HasSubstr("--input_format=json_lines"));
  DocumentFormat text;
  text.input_format = InputFormat::Text;
  EXPECT_EQ(parse_chunk("/dev/fd/63", chunk, text).by_key[0][0].text, kJsonLines);
}

}  // namespace
}  // namespace mcpp::input_format_test
