// Preprocessing in parts: the bytes of one process, wherever the input is cut.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <zlib.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "data/parts/joiner.h"
#include "data/parts/merge.h"
#include "data/prepare/tokenizer_training.h"
#include "tests/data/data_golden.h"

namespace mcpp {
namespace {

using test::input_error;
using test::ScratchFolder;
using testing::HasSubstr;

class Parts : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = new ScratchFolder;
    TokenizerOptions options;
    options.input = {(test::source_folder() / "data/tinyshakespeare.txt").string()};
    options.output = model();
    options.vocab_size = 600;
    train_tokenizer(options, Log(1));
  }
  static void TearDownTestSuite() {
    delete folder_;
    folder_ = nullptr;
  }
  static std::string model() { return (*folder_ / "tokenizer.model").string(); }
  static std::string play() { return read_text_file(test::source_folder() / "data/tinyshakespeare.txt"); }

  std::string file(const std::string& name, const std::string& text) {
    write_file_atomic(out_ / name, text);
    return (out_ / name).string();
  }
  std::string gzip_file(const std::string& name, const std::string& text) {
    gzFile packed = gzopen((out_ / name).c_str(), "wb");
    gzwrite(packed, text.data(), static_cast<unsigned>(text.size()));
    gzclose(packed);
    return (out_ / name).string();
  }
  PreprocessOptions options(std::vector<std::string> input, const std::string& prefix) {
    PreprocessOptions result;
    result.input = std::move(input);
    result.output_prefix = (out_ / prefix).string();
    result.tokenizer_model = model();
    result.workers = 2;
    return result;
  }
  static std::string jsonl(const std::string& text, const std::string& other) {
    std::string lines;
    for (const std::string& line : split(text, '\n'))
      lines += nlohmann::json{{"text", line}, {"other", other}}.dump() + "\n";
    return lines;
  }

  /// What preprocess_in_parts() does, with the parts made in turn, the last one first, and joined by so many processes;
  /// how many units there were.
  std::size_t in_parts(const PreprocessOptions& o, i64 unit_bytes, int processes = 1) {
    const Tokenizer tokenizer{Path(o.tokenizer_model)};
    const std::vector<WorkUnit> units = work_units(o.input, o.format(), unit_bytes);
    const PartsFolder folder(o, output_keys(o, o.input));
    folder.open(tokenizer);
    std::vector<std::unique_ptr<PartsJoiner>> joiners;
    for (int process = 0; process < processes; ++process)
      joiners.push_back(std::make_unique<PartsJoiner>(folder, units, o, process));
    for (std::size_t unit = units.size(); unit-- > 0;) {
      const PartNote note = make_part(folder, units[unit], o, tokenizer, 2, [](i64) {})();
      EXPECT_EQ(folder.note_text(units[unit], *folder.read_note(units[unit])), folder.note_text(units[unit], note));
      for (const auto& joiner : joiners) joiner->add(unit, note, static_cast<int>(unit) % processes);
    }
    for (const auto& joiner : joiners) joiner->finish();
    joiners[0]->publish();
    folder.remove();
    return units.size();
  }

  void expect_same(const std::string& a, const std::string& b) {
    for (const char* ending : {".bin", ".idx", ".json"})
      EXPECT_EQ(read_text_file(out_ / (a + ending)), read_text_file(out_ / (b + ending))) << a << " " << b << ending;
  }

  static ScratchFolder* folder_;
  ScratchFolder out_;
};
ScratchFolder* Parts::folder_ = nullptr;

TEST_F(Parts, GiveTheBytesOfOneProcessWhereverTheyAreCut) {
  const std::string text = play().substr(0, 700'000);
  std::string long_paragraph;
  while (long_paragraph.size() < 1'100'000) long_paragraph += "words of a paragraph that is longer than a piece\n";
  std::string long_line;
  while (long_line.size() < 700'000) long_line += "one line without end ";
  const std::vector<std::string> texts{
      file("a.txt", text), file("empty.txt", ""),
      file("b.txt", "\n\n" + text.substr(0, 100'000) + "\n\n" + long_paragraph + "\n\n\n \n" + long_line + "\nx\n\n"),
      gzip_file("c.txt.gz", text.substr(0, 50'000)), file("blank.txt", "\n \n\n")};
  for (const TextDocument kind : {TextDocument::File, TextDocument::Line, TextDocument::Paragraph}) {
    PreprocessOptions one = options(texts, "one");
    one.text_document = kind;
    one.keep_empty = kind == TextDocument::Line;
    run_preprocess(one, Log(1));
    std::size_t most = 0;
    for (const i64 unit_bytes : {i64{1}, i64{600'000}}) {
      PreprocessOptions o = one;
      o.output_prefix = (out_ / "parts").string();
      if (kind == TextDocument::Line && unit_bytes == 1) continue;  // some ten thousand parts
      most = std::max(most, in_parts(o, unit_bytes, 3));
      expect_same("one_text_document", "parts_text_document");
    }
    EXPECT_GE(most, 7u) << "the text was hardly cut";
  }
}

TEST_F(Parts, OfJsonLinesGiveTheBytesOfOneProcess) {
  const std::string lines = jsonl(play().substr(0, 40'000), "other text");
  PreprocessOptions one = options({file("a.jsonl", lines), gzip_file("b.jsonl.gz", lines)}, "one");
  one.json_keys = {"text", "other"};
  one.append_eod = false;
  run_preprocess(one, Log(1));
  PreprocessOptions o = one;
  o.output_prefix = (out_ / "parts").string();
  EXPECT_GT(in_parts(o, 5'000, 2), 8u);
  expect_same("one_text_document", "parts_text_document");
  expect_same("one_other_document", "parts_other_document");
}

TEST_F(Parts, NameTheLineOfTheFile) {
  std::string lines = jsonl(play().substr(0, 40'000), "x");
  const i64 line = std::count(lines.begin(), lines.end(), '\n') + 1;
  PreprocessOptions o = options({file("a.jsonl", lines + "{\"text\": 3}\n" + lines)}, "d");
  EXPECT_THAT(input_error([&] { in_parts(o, 5'000); }), HasSubstr(str("a.jsonl:", line, ": \"text\" is not a string")));
  EXPECT_FALSE(std::filesystem::exists(out_ / "d_text_document.bin"));
  o.skip_malformed = true;
  EXPECT_THAT(input_error([&] { in_parts(o, 5'000); }), HasSubstr("by other rules"));
}

TEST_F(Parts, ThatAreNotWholeAreMadeAgain) {
  PreprocessOptions o = options({file("a.txt", play())}, "d");
  const Tokenizer tokenizer{Path(o.tokenizer_model)};
  const PartsFolder folder(o, {"text"});
  folder.open(tokenizer);
  const WorkUnit unit = work_units(o.input, o.format(), i64{1} << 30)[0];
  EXPECT_FALSE(folder.read_note(unit)) << "nothing was done";
  make_part(folder, unit, o, tokenizer, 1, [](i64) {})();
  ASSERT_TRUE(folder.read_note(unit));
  const Path bin = bin_path(folder.prefix(unit, "text"));
  std::filesystem::resize_file(bin, std::filesystem::file_size(bin) - 2);
  EXPECT_FALSE(folder.read_note(unit)) << "cut";
  make_part(folder, unit, o, tokenizer, 1, [](i64) {})();
  std::filesystem::remove(idx_path(folder.prefix(unit, "text")));
  EXPECT_FALSE(folder.read_note(unit)) << "without its .idx";
  const auto end = make_part(folder, unit, o, tokenizer, 1, [](i64) {});
  EXPECT_FALSE(folder.read_note(unit)) << "tokenised, and not on the disk yet";
  end();
  ASSERT_TRUE(folder.read_note(unit));
  file("a.txt", play() + "more");
  EXPECT_FALSE(folder.read_note(work_units(o.input, o.format(), i64{1} << 30)[0])) << "another text";
}

/// Each writes to a file of its own here, so that is seen who wrote what.
TEST(JoinedFile, EveryBlockIsWrittenByOneWriterAlone) {
  const ScratchFolder folder;
  constexpr int kWriters = 3;
  constexpr i64 kBlock = JoinedFile::kBlockBytes;
  std::vector<std::unique_ptr<JoinedFile>> writers;
  for (int writer = 0; writer < kWriters; ++writer)
    writers.push_back(std::make_unique<JoinedFile>(folder / str(writer), writer));
  std::string whole;
  std::vector<int> owners;  // [block]
  int number = 0;
  for (const i64 size : {i64{10}, i64{0}, kBlock - 10, i64{5}, kBlock, 3 * kBlock + 7, i64{1}, i64{0}, i64{2},
                         kBlock - 15, 2 * kBlock, i64{100}}) {
    const std::string piece(static_cast<std::size_t>(size), static_cast<char>('a' + number));
    const int owner = number++ % kWriters;
    whole += piece;
    while (std::ssize(owners) * kBlock < std::ssize(whole)) owners.push_back(owner);
    for (const auto& writer : writers) writer->append(size, owner, [&] { return std::as_bytes(std::span(piece)); });
  }
  std::string joined(whole.size(), '\0');
  for (int writer = 0; writer < kWriters; ++writer) {
    writers[static_cast<std::size_t>(writer)]->sync();
    EXPECT_EQ(writers[static_cast<std::size_t>(writer)]->size(), std::ssize(whole));
    const std::string text = read_text_file(folder / str(writer));
    for (std::size_t at = 0; at < text.size(); ++at) {
      if (text[at] == '\0') continue;
      ASSERT_EQ(owners[at / kBlock], writer) << at;
      joined[at] = text[at];
    }
  }
  EXPECT_TRUE(joined == whole);
}

TEST_F(Parts, MergedDatasetsAreTheOneOfAllTexts) {
  const std::string a = file("a.txt", play().substr(0, 50'000)), b = file("b.txt", "one\n\ntwo\n\n"),
                    c = file("c.txt", play().substr(50'000, 9'000));
  std::vector<std::string> prefixes;
  for (const auto& [input, name] : {std::pair{a, "a"}, {b, "b"}, {c, "c"}}) {
    PreprocessOptions o = options({input}, name);
    o.text_document = TextDocument::Paragraph;
    prefixes.push_back(run_preprocess(o, Log(1)).outputs[0].prefix);
  }
  PreprocessOptions whole = options({a, b, c}, "whole");
  whole.text_document = TextDocument::Paragraph;
  run_preprocess(whole, Log(1));
  const PreprocessOutput merged = merge_datasets(prefixes, (out_ / "merged").string(), Log(1));
  expect_same("whole_text_document", "merged");
  EXPECT_EQ(merged.info.tokens, IndexedDataset(out_ / "merged").num_tokens());

  const auto error = [&](const std::vector<std::string>& inputs, const std::string& output) {
    return input_error([&] { merge_datasets(inputs, (out_ / output).string(), Log(1)); });
  };
  EXPECT_THAT(error({prefixes[0]}, "x"), HasSubstr("at least two"));
  EXPECT_THAT(error({prefixes[0], "absent"}, "x"), HasSubstr("absent.idx"));
  EXPECT_THAT(error(prefixes, "a_text_document"), HasSubstr("is one of the datasets that are joined"));
  DatasetInfo other = *read_dataset_info(prefixes[1]);
  other.tokenizer_checksum = "0123";
  write_dataset_info(prefixes[1], other);
  EXPECT_THAT(error(prefixes, "x"), HasSubstr("b_text_document.json: the dataset was made with another tokenizer"));
  other = *read_dataset_info(prefixes[0]);
  other.append_eod = false;
  write_dataset_info(prefixes[1], other);
  EXPECT_THAT(error(prefixes, "x"), HasSubstr("without an <eod> after each document"));
  EXPECT_FALSE(std::filesystem::exists(out_ / "x.bin"));

  // Of datasets that say nothing about themselves the joined one says nothing either.
  std::filesystem::remove(info_path(prefixes[1]));
  merge_datasets(prefixes, (out_ / "merged").string(), Log(1));
  EXPECT_EQ(read_text_file(out_ / "merged.bin"), read_text_file(out_ / "whole_text_document.bin"));
  EXPECT_EQ(read_text_file(out_ / "merged.idx"), read_text_file(out_ / "whole_text_document.idx"));
  EXPECT_FALSE(std::filesystem::exists(out_ / "merged.json"));
  IndexedDatasetWriter wide(out_ / "wide", 100'000);
  wide.add_document(std::vector<i32>{70'000, 1});
  wide.finish();
  EXPECT_THAT(error({prefixes[0], (out_ / "wide").string()}, "x"), HasSubstr("wide.idx: has tokens of type"));
}

}  // namespace
}  // namespace mcpp
