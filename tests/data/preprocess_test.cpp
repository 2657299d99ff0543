#include "data/preprocess/preprocess.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <zlib.h>

#include <csignal>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "data/dataset/index/indexed_dataset.h"
#include "data/preprocess/document_reader.h"
#include "data/preprocess/verify.h"
#include "data/tokenizer/tokenizer.h"
#include "tests/data/preprocess_fixture.h"
#include "tests/support/build.h"

namespace mcpp {
namespace {

using test::error_of;
using test::input_error;
using testing::HasSubstr;

class PreprocessTest : public test::PreprocessFixture {
 protected:
  std::string error(const PreprocessOptions& o) {
    return input_error([&] { run_preprocess(o, Log(1)); });
  }
  std::string bytes(const std::string& name) { return read_text_file(out_ / name); }

  /// Returns the documents of a dataset as text, each without its <eod>.
  std::vector<std::string> documents(const std::string& prefix) {
    const Tokenizer tokenizer{Path(model())};
    const IndexedDataset dataset(out_ / prefix);
    std::vector<std::string> texts;
    for (i64 d = 0; d < dataset.num_documents(); ++d) {
      std::vector<i32> tokens;
      for (i64 s = dataset.document_begin(d); s < dataset.document_begin(d + 1); ++s) {
        tokens.resize(static_cast<std::size_t>(dataset.length(s)));
        dataset.read(s, 0, tokens);
        EXPECT_EQ(std::count(tokens.begin(), tokens.end(), tokenizer.eod()), 1);
        EXPECT_EQ(tokens.back(), tokenizer.eod());
      }
      texts.push_back(tokenizer.decode(tokens));
    }
    return texts;
  }
};

TEST_F(PreprocessTest, StoresFileOfAnyLengthAsOneDocument) {
  const std::string text = read_text_file(source());  // 1.1 MB: three chunks
  const PreprocessResult result = run_preprocess(options({source().string()}), Log(1));
  EXPECT_EQ(documents("d_text_document"), std::vector<std::string>{text});
  const DatasetInfo& info = result.outputs.at(0).info;
  EXPECT_EQ(info.documents, 1);
  EXPECT_EQ(info.source_bytes, static_cast<i64>(text.size()));
  EXPECT_EQ(info.source_words, count_words(text));
  EXPECT_EQ(info.source_words, 202651);  // wc -w
  const auto stored = read_dataset_info(result.outputs[0].prefix);
  ASSERT_TRUE(stored.has_value());
  EXPECT_EQ(info_to_json(*stored), info_to_json(info));
  EXPECT_EQ(stored->tokenizer_checksum, Tokenizer{Path(model())}.checksum());
}

TEST_F(PreprocessTest, ResultIsIndependentOfWorkers) {
  for (const TextDocument kind : {TextDocument::File, TextDocument::Line, TextDocument::Paragraph}) {
    for (const i64 workers : {1, 4}) {
      PreprocessOptions o = options({source().string(), source().string()}, workers == 1 ? "one" : "four");
      o.text_document = kind;
      o.workers = workers;
      run_preprocess(o, Log(1));
    }
    for (const char* suffix : {".bin", ".idx", ".json"}) {
      EXPECT_EQ(bytes(str("one_text_document", suffix)), bytes(str("four_text_document", suffix))) << suffix;
    }
  }
}

TEST_F(PreprocessTest, TextJsonAndGzipYieldEqualOutput) {
  const std::vector<std::string> texts{"First text.\n", "second \"text\"\n\nna\xC3\xAFve", "third\ttext"};
  std::string jsonl;
  PreprocessOptions text = options({}, "text");
  for (const std::string& t : texts) {
    jsonl += nlohmann::json{{"text", t}, {"other", 1}}.dump() + "\n";
    text.input.push_back(file(str("t", text.input.size(), ".txt"), t));
  }
  run_preprocess(text, Log(1));
  run_preprocess(options({file("d.jsonl", jsonl)}, "jsonl"), Log(1));
  run_preprocess(options({file("d.json", jsonl + "\n  \n")}, "json"), Log(1));
  gzip_file("z.jsonl.gz", jsonl);
  run_preprocess(options({(out_ / "z.jsonl.gz").string()}, "gz"), Log(1));
  gzip_file("t1.txt.gz", texts[1]);
  text.input[1] = (out_ / "t1.txt.gz").string();
  text.output_prefix = (out_ / "textgz").string();
  run_preprocess(text, Log(1));
  EXPECT_EQ(documents("text_text_document"), texts);
  for (const char* other : {"jsonl", "json", "gz", "textgz"}) {
    for (const char* suffix : {"_text_document.bin", "_text_document.idx", "_text_document.json"}) {
      EXPECT_EQ(bytes(str("text", suffix)), bytes(str(other, suffix))) << other << suffix;
    }
  }
}

TEST_F(PreprocessTest, SplitsLinesAndParagraphsIntoDocuments) {
  const std::string input = file("d.txt", "one\ntwo\r\n\r\nthree  \n \n\n\t\nfour\nfive");
  PreprocessOptions o = options({input});
  o.text_document = TextDocument::Line;
  EXPECT_EQ(run_preprocess(o, Log(1)).empty_documents, 2);
  EXPECT_EQ(documents("d_text_document"),
            (std::vector<std::string>{"one", "two", "three  ", " ", "\t", "four", "five"}));
  o.text_document = TextDocument::Paragraph;
  EXPECT_EQ(run_preprocess(o, Log(1)).empty_documents, 0);
  EXPECT_EQ(documents("d_text_document"), (std::vector<std::string>{"one\ntwo", "three  ", "four\nfive"}));
}

TEST_F(PreprocessTest, DoesNotSplitLongParagraphs) {
  std::string longer;
  while (longer.size() < 1500000) longer += "some words in a line of a long paragraph\n";
  longer.pop_back();
  std::string one_line;
  while (one_line.size() < 700000) one_line += "word ";
  one_line += "end";
  PreprocessOptions o = options({file("d.txt", "short\n\n" + longer + "\n\n" + one_line + "\n\nlast\n")});
  o.text_document = TextDocument::Paragraph;
  run_preprocess(o, Log(1));
  EXPECT_EQ(documents("d_text_document"), (std::vector<std::string>{"short", longer, one_line, "last"}));
}

TEST_F(PreprocessTest, EverySplitPreservesText) {
  const std::string text =
      "a line\nanother \xE4\xB8\xAD\xE6\x96\x87\n\n\nparagraph with words\nandaverylongwordwithoutspace";
  const std::string path = file("d.txt", text);
  for (const SplitMode mode : {SplitMode::Anywhere, SplitMode::Line, SplitMode::Paragraph}) {
    for (std::size_t target = 4; target < text.size() + 3; ++target) {
      TextSource source{Path(path)};
      TextChunk chunk;
      std::string all;
      i64 line = 1;
      while (source.next(chunk, target, mode)) {
        EXPECT_EQ(chunk.byte_offset, static_cast<i64>(all.size()));
        EXPECT_EQ(chunk.first_line, line);
        all += chunk.text;
        line += std::count(chunk.text.begin(), chunk.text.end(), '\n');
      }
      EXPECT_EQ(all, text);
      EXPECT_TRUE(chunk.ends_document);
    }
  }
}

TEST_F(PreprocessTest, WritesOneDatasetPerJsonKey) {
  PreprocessOptions o = options({file("d.jsonl", R"({"title": "T", "text": "body text"})"
                                                 "\n"
                                                 R"({"title": "", "text": "x"})")});
  o.json_keys = {"text", "title"};
  const PreprocessResult result = run_preprocess(o, Log(1));
  EXPECT_EQ(documents("d_text_document"), (std::vector<std::string>{"body text", "x"}));
  EXPECT_EQ(documents("d_title_document"), (std::vector<std::string>{"T"}));
  EXPECT_EQ(result.empty_documents, 1);
  o.keep_empty = true;
  run_preprocess(o, Log(1));
  EXPECT_EQ(documents("d_title_document"), (std::vector<std::string>{"T", ""}));
  EXPECT_EQ(IndexedDataset(out_ / "d_title_document").num_sequences(), 1);
}

TEST_F(PreprocessTest, ParagraphsAreIndependentOfChunkBoundaries) {
  DocumentFormat format;
  format.text_document = TextDocument::Paragraph;
  const auto documents = [&](const Path& path, std::size_t chunk_bytes) {
    TextSource source(path);
    TextChunk chunk;
    std::vector<std::string> found{""};
    while (source.next(chunk, chunk_bytes, SplitMode::Paragraph)) {
      const ChunkDocuments parsed = parse_chunk(path, chunk, format);
      for (const Segment& segment : parsed.by_key[0]) {
        found.back() += segment.text;
        if (segment.ends_document && !found.back().empty()) found.emplace_back();
      }
    }
    EXPECT_EQ(found.back(), "") << "the last document does not end";
    found.pop_back();
    return found;
  };
  for (std::size_t size = 1; size < 15; ++size) {  // longer lines are split themselves
    const std::string text(size, 'x'), blank(size, ' ');
    const Path path = file("p.txt", text + "\n\n" + text + "\n" + blank + "\n\n" + blank + text + "\n" + text + "\n\n");
    EXPECT_EQ(documents(path, 16), (std::vector<std::string>{text, text, blank + text + "\n" + text})) << size;
  }
}

TEST_F(PreprocessTest, MalformedLinesAreNamedAndLeaveNoOutput) {
  const std::string good = R"({"text": "good"})"
                           "\n";
  const std::pair<std::string, const char*> cases[] = {{"{\"text\": \"unclosed", "malformed JSON"},
                                                       {"[1]", "not a JSON object"},
                                                       {"{\"body\": \"x\"}", "no key \"text\""},
                                                       {"{\"text\": 3}", "is not a string"},
                                                       {"{\"text\": [[\"x\"]]}", "is not a string"},
                                                       {"{\"a\": {\"text\": \"x\"}}", "no key \"text\""},
                                                       {"{\"a\":" + std::string(100000, '['), "nested deeper than 512"},
                                                       {"{\"text\": \"\xFF\"}", "not UTF-8"}};
  for (const auto& [line, message] : cases) {
    PreprocessOptions o = options({file("d.jsonl", good + "\n" + line + "\n" + good)});
    const std::size_t before = out_.count();
    EXPECT_THAT(error(o), testing::AllOf(HasSubstr("d.jsonl:3: "), HasSubstr(message)));
    EXPECT_EQ(out_.count(), before);
    o.skip_malformed = true;
    o.invalid_utf8 = InvalidUtf8::Replace;
    const PreprocessResult result = run_preprocess(o, Log(1));
    const bool replaced = line.find('\xFF') != std::string::npos;
    EXPECT_EQ(result.malformed_lines, replaced ? 0 : 1);
    EXPECT_EQ(result.outputs[0].info.documents, replaced ? 3 : 2);
    std::filesystem::remove(out_ / "d_text_document.bin");
    std::filesystem::remove(out_ / "d_text_document.idx");
    std::filesystem::remove(out_ / "d_text_document.json");
  }
}

TEST_F(PreprocessTest, ExplainsOtherInvalidInput) {
  EXPECT_THAT(error(options({})), HasSubstr("input is empty"));
  EXPECT_THAT(error(options({(out_ / "none.txt").string()})), HasSubstr("none.txt"));
  EXPECT_THAT(error(options({file("empty.txt", "")})), HasSubstr("no text"));
  EXPECT_THAT(error(options({file("bad.txt", "ok\nbad\xC3(\n")})), HasSubstr("bad.txt:2: not UTF-8 at byte 6"));
  gzip_file("truncated.txt.gz", read_text_file(source()));
  file("truncated.txt.gz", bytes("truncated.txt.gz").substr(0, 100000));
  EXPECT_THAT(error(options({(out_ / "truncated.txt.gz").string()})), HasSubstr("truncated.txt.gz"));
  for (const auto& entry : std::filesystem::directory_iterator(out_.path())) {
    EXPECT_EQ(entry.path().filename().string().find("d_text"), std::string::npos) << entry.path();
  }
}

TEST_F(PreprocessTest, RejectsGzipBombs) {
  constexpr std::size_t kMebi = 1 << 20;
  const std::string path = (out_ / "bomb.txt.gz").string(), line(kMebi - 1, 'a'), text = line + "\n";
  gzFile file = gzopen(path.c_str(), "wb9");
  for (int i = 0; i < 30; ++i) gzwrite(file, text.data(), static_cast<unsigned>(kMebi));
  gzclose(file);
  for (const SplitMode mode : {SplitMode::Anywhere, SplitMode::Line}) {
    TextSource source(path);
    TextChunk chunk;
    i64 bytes = 0;
    const std::string message = input_error([&] {
      while (source.next(chunk, kMebi, mode)) bytes += static_cast<i64>(chunk.text.size());
    });
    EXPECT_THAT(message, HasSubstr("bomb.txt.gz: is more than 200 times as large as its gzip file"));
    EXPECT_GE(bytes, i64{14} << 20) << "small files may be repetitive";
    EXPECT_LE(bytes, i64{20} << 20);
  }
}

i64 bytes_of(const Path& path) {
  TextSource source(path);
  TextChunk chunk;
  i64 bytes = 0;
  while (source.next(chunk, 1 << 20, SplitMode::Line)) bytes += static_cast<i64>(chunk.text.size());
  return bytes;
}

TEST_F(PreprocessTest, ReadsGzipWithRepetitiveParts) {
  std::string text;
  while (text.size() < 18 << 20) text += "the same line again\n";
  for (u32 i = 0, value = 1; i < 300'000; ++i) {
    value = value * 1664525 + 1013904223;
    text += i % 80 == 79 ? '\n' : static_cast<char>('a' + (value >> 24) % 26);
  }
  gzip_file("begin.txt.gz", text);
  EXPECT_EQ(bytes_of(out_ / "begin.txt.gz"), static_cast<i64>(text.size()));
}

/// Returns the text of a file, or the error message that rejects it.
std::string text_or_error(const Path& path) {
  std::string text;
  const std::string error = input_error([&] {
    TextSource source(path);
    TextChunk chunk;
    while (source.next(chunk, 1 << 16, SplitMode::Anywhere)) text += chunk.text;
  });
  return error.empty() ? text : error;
}

TEST_F(PreprocessTest, ReadsEveryGzipMember) {
  const std::string text = read_text_file(source()).substr(0, 300'000);
  gzip_file("a.gz", text.substr(0, 100'000));
  gzip_file("none.gz", "");
  gzip_file("b.gz", text.substr(100'000));
  const std::string a = bytes("a.gz"), none = bytes("none.gz"), b = bytes("b.gz");
  for (const std::string& padding : {std::string(), std::string(700, '\0')}) {
    EXPECT_EQ(text_or_error(file("all.txt.gz", a + none + b + none + padding)), text);
  }
  EXPECT_EQ(text_or_error(file("none.txt.gz", none)), "");
}

TEST_F(PreprocessTest, RejectsTrailingDataAfterGzipMember) {
  const std::string text = read_text_file(source()).substr(0, 300'000);
  gzip_file("a.gz", text);
  const std::string a = bytes("a.gz");
  const auto expect_rejected = [&](const std::string& content, const char* why) {
    const std::string path = file("d.txt.gz", content);
    EXPECT_THAT(text_or_error(path), testing::AllOf(HasSubstr("d.txt.gz: "), HasSubstr(why))) << content.size();
    EXPECT_THAT(error(options({path})), HasSubstr("d.txt.gz: "));
  };
  expect_rejected(a + "plain text", "is followed by trailing garbage");
  expect_rejected(a + std::string(9, '\0') + a, "is followed by trailing garbage");
  expect_rejected(a + "\x1F", "is followed by trailing garbage");
  std::string headless = a;
  headless[2] = 7;  // an unknown compression method
  expect_rejected(a + headless, "damaged");
  for (const std::size_t kept : {std::size_t{2}, std::size_t{10}, a.size() / 2, a.size() - 1})
    expect_rejected(a + a.substr(0, kept), "ends early");
  for (const std::size_t at : {std::size_t{3}, a.size() / 3, a.size() - 6, a.size() - 2}) {  // flags, data, check, size
    std::string flipped = a;
    flipped[at] = static_cast<char>(flipped[at] ^ 0x40);
    expect_rejected(a + flipped, "the gzip data");
  }
}

TEST_F(PreprocessTest, NamesInputsThatAreNotFiles) {
  std::filesystem::create_symlink("absent", out_ / "dangling.txt");
  std::filesystem::create_symlink("circle.txt", out_ / "circle.txt");
  EXPECT_THAT(text_or_error(out_ / "dangling.txt"), HasSubstr("dangling.txt, a link to absent: No such file"));
  EXPECT_THAT(text_or_error(out_ / "circle.txt"), HasSubstr("circle.txt, a link to circle.txt: Too many levels"));
  EXPECT_THAT(text_or_error(out_.path()), HasSubstr("is a directory"));
  EXPECT_THAT(text_or_error("/dev/null"), HasSubstr("is neither a file nor a pipe"));
  for (const char* name : {"dangling.txt", "circle.txt"}) {
    EXPECT_THAT(error(options({(out_ / name).string()})), HasSubstr(str(name, ", a link to ")));
    PreprocessOptions other = options({file("text.txt", "text")});
    other.tokenizer_model = (out_ / name).string();
    EXPECT_THAT(error(other), HasSubstr(str(name, ", a link to ")));
  }
}

TEST_F(PreprocessTest, ReadsPipes) {
  const Path path = out_ / "pipe";
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  const std::string line(1023, 'a');
  constexpr i64 kLines = 18 << 10;
  std::signal(SIGPIPE, SIG_IGN);  // in case the reader fails
  std::thread writer([&] {
    std::ofstream pipe(path);
    for (i64 i = 0; i < kLines; ++i) pipe << line << '\n';
  });
  const std::string error = error_of([&] { EXPECT_EQ(bytes_of(path), kLines * 1024); });
  writer.join();
  EXPECT_EQ(error, "");
}

TEST_F(PreprocessTest, VerifyAndShowReportContents) {
  PreprocessOptions o = options({source().string()});
  o.text_document = TextDocument::Paragraph;
  const PreprocessResult result = run_preprocess(o, Log(1));
  const Path prefix = out_ / "d_text_document";
  const DatasetSummary summary = verify_dataset(prefix, 0, Log(1));
  EXPECT_EQ(summary.documents, result.outputs[0].info.documents);
  EXPECT_EQ(summary.documents_with_eod, summary.documents);
  EXPECT_EQ(summary.tokens, result.outputs[0].info.tokens);
  EXPECT_THAT(to_text(summary), HasSubstr("202651 words"));
  EXPECT_THAT(input_error([&] { verify_dataset(prefix, 10, Log(1)); }), HasSubstr("outside the vocabulary 0 .. 9"));
  DatasetInfo wrong = result.outputs[0].info;
  ++wrong.tokens;
  write_dataset_info(prefix, wrong);
  EXPECT_THAT(input_error([&] { verify_dataset(prefix, 0, Log(1)); }), HasSubstr("do not belong together"));
  write_file_atomic(info_path(prefix), "{");
  EXPECT_THAT(input_error([&] { verify_dataset(prefix, 0, Log(1)); }), HasSubstr("damaged"));
}

}  // namespace
}  // namespace mcpp
