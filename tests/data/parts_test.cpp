// Preprocessing in parts: the output is bitwise identical to the output of one process, for any split of the input.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <thread>

#include "data/preprocess/distributed/merge.h"
#include "data/preprocess/distributed/part_assembler.h"
#include "data/preprocess/distributed/part_writer.h"
#include "data/preprocess/distributed/parts_folder.h"
#include "tests/data/preprocess_fixture.h"

namespace mcpp {
namespace {

using test::input_error;
using testing::HasSubstr;

class PreprocessPartsTest : public test::PreprocessFixture {
 protected:
  static std::string source_text() { return read_text_file(source()); }

  static std::string jsonl(const std::string& text, const std::string& other) {
    std::string lines;
    for (const std::string& line : split(text, '\n'))
      lines += nlohmann::json{{"text", line}, {"other", other}}.dump() + "\n";
    return lines;
  }

  /// Options for a run that is interrupted or has little memory.
  struct Run {
    int processes = 1;
    std::size_t tokenized = std::numeric_limits<std::size_t>::max();  ///< units to tokenize, the last ones first
    std::size_t written = std::numeric_limits<std::size_t>::max();    ///< units to write before the process is killed
    i64 memory = TokenMemory::kDefaultLimit;                          ///< memory of each process
    i64 unit_bytes = 5'000;
  };

  /// Runs the steps of preprocess_in_parts(), tokenizing the last unit first. Returns the number of units.
  std::size_t in_parts(const PreprocessOptions& o, const Run& run) {
    const Tokenizer tokenizer{Path(o.tokenizer_model)};
    const std::vector<WorkUnit> units = make_work_units(o.input, o.format(), run.unit_bytes);
    const PartsFolder folder(o, output_keys(o, InputFiles(o.input, o.format(), 1 << 16).are_json_lines()));
    folder.open(tokenizer);
    const std::vector<std::optional<PartMetadata>> kept = folder.retain_parts(units);
    const auto processes = static_cast<std::size_t>(run.processes);
    std::vector<std::unique_ptr<UnitPlacement>> output_ranges;
    std::vector<std::unique_ptr<PartWriter>> writers;
    std::vector<std::unique_ptr<TokenMemory>> memories;
    for (std::size_t process = 0; process < processes; ++process) {
      output_ranges.push_back(std::make_unique<UnitPlacement>(folder, units));
      writers.push_back(std::make_unique<PartWriter>(folder));
      memories.push_back(std::make_unique<TokenMemory>(run.memory));
    }
    std::vector<std::unique_ptr<UnitTokens>> tokens(units.size());
    made_ = found_ = mapped_files_ = 0;
    for (std::size_t unit = units.size(); unit-- > 0;) {
      PartMetadata metadata;
      if (kept[unit]) metadata = *kept[unit];
      found_ += !metadata.output_ranges.empty();
      if (metadata.output_ranges.empty()) {
        if (made_ == run.tokenized) return units.size();
        ++made_;
        tokens[unit] = tokenize_unit(folder, units[unit], tokenizer, 2, *memories[unit % processes], [](i64) {});
        metadata = tokens[unit]->part().metadata;
        mapped_files_ += folder.read_metadata(units[unit]).has_value();
      }
      for (const auto& of_process : output_ranges) of_process->add(unit, metadata);
    }
    PartAssembler assembly(folder, units);
    std::size_t written = 0;
    for (std::size_t unit = 0; unit < units.size(); ++unit) {
      if (tokens[unit]) {
        if (written++ == run.written) return units.size();
        writers[unit % processes]->write(*tokens[unit], *output_ranges[unit % processes]->wait_for(unit, {}));
        tokens[unit].reset();
      }
      assembly.add(unit);
    }
    assembly.finish();
    assembly.publish();
    folder.remove();
    return units.size();
  }

  void expect_same(const std::string& a, const std::string& b) {
    for (const char* ending : {".bin", ".idx", ".json"})
      EXPECT_EQ(read_text_file(out_ / (a + ending)), read_text_file(out_ / (b + ending))) << a << " " << b << ending;
  }

  std::size_t made_ = 0;          // units that the last run tokenized
  std::size_t found_ = 0;         // units that were already in their output ranges
  std::size_t mapped_files_ = 0;  // units whose tokens were in files
};

TEST_F(PreprocessPartsTest, LossMaskIsBitwiseIdenticalForAnySplit) {
  std::string lines;
  for (int i = 0; i < 2000; ++i) {
    const std::string prompt = str("What is ", i, "?"), completion(static_cast<std::size_t>(i % 50), 'a');
    lines += nlohmann::json{{"prompt", prompt}, {"completion", completion}}.dump() + "\n";
  }
  PreprocessOptions whole = options({file("in.jsonl", lines)}, "whole");
  whole.json_content = JsonContent::PromptCompletion;
  const PreprocessResult result = run_preprocess(whole, Log(1));
  PreprocessOptions parts = whole;
  parts.output_prefix = (out_ / "parts").string();
  in_parts(parts, {.processes = 2, .written = 3});  // killed
  EXPECT_FALSE(std::filesystem::exists(out_ / "parts_completion_document.idx"));
  EXPECT_GT(in_parts(parts, {.processes = 3}), 10u);
  EXPECT_GE(found_, 3u);
  for (const char* mask : {"", "_loss_mask"})
    expect_same(str("whole_completion_document", mask), str("parts_completion_document", mask));
  EXPECT_EQ(result.outputs.back().info.documents, 2000);
  EXPECT_GT(result.outputs.back().info.targets, 2000);
}

TEST_F(PreprocessPartsTest, OutputIsBitwiseIdenticalForAnySplit) {
  const std::string text = source_text().substr(0, 700'000);
  std::string long_paragraph;
  while (long_paragraph.size() < 1'100'000) long_paragraph += "words of a paragraph that is longer than a chunk\n";
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
    std::size_t max_units = 0;
    for (const i64 unit_bytes : {i64{1}, i64{600'000}}) {
      PreprocessOptions o = one;
      o.output_prefix = (out_ / "parts").string();
      if (kind == TextDocument::Line && unit_bytes == 1) continue;  // would make some ten thousand parts
      for (const i64 memory : {TokenMemory::kDefaultLimit, i64{1}}) {
        max_units = std::max(max_units, in_parts(o, {.processes = 3, .memory = memory, .unit_bytes = unit_bytes}));
        expect_same("one_text_document", "parts_text_document");
      }
    }
    EXPECT_GE(max_units, 7u) << "the text was split into too few units";
  }
}

TEST_F(PreprocessPartsTest, JsonLinesOutputIsBitwiseIdentical) {
  const std::string lines = jsonl(source_text().substr(0, 40'000), "other text");
  PreprocessOptions one = options({file("a.jsonl", lines), gzip_file("b.jsonl.gz", lines)}, "one");
  one.json_keys = {"text", "other"};
  one.append_eod = false;
  run_preprocess(one, Log(1));
  PreprocessOptions o = one;
  o.output_prefix = (out_ / "parts").string();
  EXPECT_GT(in_parts(o, {.processes = 2}), 8u);
  expect_same("one_text_document", "parts_text_document");
  expect_same("one_other_document", "parts_other_document");
}

TEST_F(PreprocessPartsTest, ErrorsNameLineOfFile) {
  std::string lines = jsonl(source_text().substr(0, 40'000), "x");
  const i64 line = std::count(lines.begin(), lines.end(), '\n') + 1;
  PreprocessOptions o = options({file("a.jsonl", lines + "{\"text\": 3}\n" + lines)}, "d");
  EXPECT_THAT(input_error([&] { in_parts(o, {}); }), HasSubstr(str("a.jsonl:", line, ": \"text\" is not a string")));
  EXPECT_FALSE(std::filesystem::exists(out_ / "d_text_document.bin"));
  o.skip_malformed = true;
  EXPECT_THAT(input_error([&] { in_parts(o, {}); }), HasSubstr("different options"));
}

/// A run that was killed after some units were tokenized or copied to their output ranges must continue from there.
TEST_F(PreprocessPartsTest, ResumesAfterInterruption) {
  PreprocessOptions one = options({file("a.txt", source_text().substr(0, 60'000))}, "one");
  one.text_document = TextDocument::Line;
  run_preprocess(one, Log(1));
  PreprocessOptions o = one;
  o.output_prefix = (out_ / "parts").string();
  const std::size_t units = in_parts(o, {.tokenized = 4});
  ASSERT_GT(units, 8u);
  in_parts(o, {.processes = 2, .written = 3});
  EXPECT_EQ(made_, units) << "units in memory were lost";
  in_parts(o, {.processes = 3, .written = 2});
  EXPECT_EQ(found_, 3u);
  EXPECT_EQ(made_, units - 3);
  in_parts(o, {.written = 0});
  EXPECT_EQ(found_, 5u);
  // Simulates a unit whose tokens were copied but whose metadata was not written.
  const std::vector<WorkUnit> all = make_work_units(o.input, o.format(), Run().unit_bytes);
  std::filesystem::remove(PartsFolder(o, {"text"}).part_path(all[1]));
  in_parts(o, {.written = 0});
  EXPECT_EQ(found_, 4u);
  EXPECT_FALSE(std::filesystem::exists(out_ / "parts_text_document.bin"));
  in_parts(o, {.processes = 2});
  EXPECT_EQ(found_, 4u);
  expect_same("one_text_document", "parts_text_document");
}

TEST_F(PreprocessPartsTest, SpillsToFilesWhenMemoryIsFull) {
  const std::string lines = jsonl(source_text().substr(0, 40'000), "other text");
  PreprocessOptions one = options({file("a.jsonl", lines), file("b.jsonl", lines)}, "one");
  one.json_keys = {"text", "other"};
  run_preprocess(one, Log(1));
  PreprocessOptions o = one;
  o.output_prefix = (out_ / "parts").string();
  const std::size_t units = in_parts(o, {.tokenized = 6, .memory = 8'000});
  ASSERT_GT(units, 12u);
  const std::size_t in_files = mapped_files_;
  EXPECT_GT(in_files, 0u);
  EXPECT_LT(in_files, made_) << "the first units fit in memory";
  in_parts(o, {.processes = 2, .written = 3, .memory = 1});
  EXPECT_EQ(mapped_files_, units) << "all units are kept in files";
  in_parts(o, {.processes = 3});
  EXPECT_EQ(found_, 3u);
  EXPECT_EQ(mapped_files_, units - 3) << "the files are reused";
  expect_same("one_text_document", "parts_text_document");
  expect_same("one_other_document", "parts_other_document");
}

TEST(TokenMemoryTest, WaitsForPendingWrites) {
  TokenMemory memory(100);
  EXPECT_TRUE(memory.reserve(60));
  EXPECT_FALSE(memory.reserve(60)) << "no write in progress will release memory";
  auto writing = std::make_unique<TokenMemory::WriteScope>(memory);
  std::atomic<bool> has_reserved = false;
  std::jthread waiting([&] { has_reserved = memory.reserve(60); });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_FALSE(has_reserved);
  memory.release(60);
  waiting.join();
  EXPECT_TRUE(has_reserved);
  waiting = std::jthread([&] { has_reserved = memory.reserve(60); });
  writing.reset();
  waiting.join();
  EXPECT_FALSE(has_reserved) << "the write released too little";
}

/// Allocating new pages for every unit would take a twentieth of the time.
TEST(TokenMemoryTest, ReusesBuffersOfUnits) {
  TokenMemory memory;
  std::vector<std::byte> first = memory.buffer();
  EXPECT_EQ(first.capacity(), 0u);
  first.resize(1000);
  const std::byte* address = first.data();
  memory.keep(std::move(first));
  const std::vector<std::byte> second = memory.buffer();
  EXPECT_TRUE(second.empty());
  EXPECT_EQ(second.data(), address);
  EXPECT_EQ(memory.buffer().capacity(), 0u);
}

TEST_F(PreprocessPartsTest, RebuildsIncompleteParts) {
  PreprocessOptions o = options({file("a.txt", source_text().substr(0, 300'000)), file("b.txt", "one\n\ntwo\n")}, "d");
  const Run one_unit{.written = 1, .unit_bytes = i64{1} << 30};
  const PartsFolder folder(o, {"text"});
  const auto metadata = [&] {
    return folder.read_metadata(make_work_units(o.input, o.format(), one_unit.unit_bytes)[0]);
  };
  const auto make = [&] { in_parts(o, one_unit); };
  const auto resize = [&](const Path& path, i64 by) {
    std::filesystem::resize_file(path,
                                 static_cast<std::uintmax_t>(static_cast<i64>(std::filesystem::file_size(path)) + by));
  };
  const auto part = [&] { return folder.part_path(make_work_units(o.input, o.format(), one_unit.unit_bytes)[0]); };
  make();
  ASSERT_TRUE(metadata());
  for (const i64 by : {-1, 1}) {
    resize(part(), by);
    EXPECT_FALSE(metadata()) << by;
    make();
    EXPECT_EQ(found_, 0u);
    ASSERT_TRUE(metadata());
  }
  std::filesystem::remove(folder.shared_output_path("text"));
  EXPECT_FALSE(metadata()) << "its tokens are missing";
  write_file_atomic(folder.shared_output_path("text"), "");
  EXPECT_FALSE(metadata()) << "some of its tokens are missing";
  folder.retain_parts(make_work_units(o.input, o.format(), one_unit.unit_bytes));
  EXPECT_FALSE(std::filesystem::exists(part())) << "an incomplete part could appear complete later";
  in_parts(o, {.written = 0, .memory = 1, .unit_bytes = one_unit.unit_bytes});
  ASSERT_TRUE(metadata()) << "its tokens are in a separate file";
  EXPECT_TRUE(metadata()->output_ranges.empty());
  resize(folder.tokens_path(make_work_units(o.input, o.format(), one_unit.unit_bytes)[0], "text"), -2);
  EXPECT_FALSE(metadata());
  make();
  ASSERT_TRUE(metadata());
  file("a.txt", source_text() + "more");
  EXPECT_FALSE(metadata()) << "it is from a different text";
}

/// Units after a changed one move to a different offset and must be rebuilt as well.
TEST_F(PreprocessPartsTest, RebuildsPartsAfterChangedFile) {
  for (int i = 0; i < 6; ++i) file(str(i, ".txt"), source_text().substr(static_cast<std::size_t>(i) * 70'000, 70'000));
  std::vector<std::string> input;
  for (int i = 0; i < 6; ++i) input.push_back((out_ / str(i, ".txt")).string());
  PreprocessOptions o = options(input, "parts");
  in_parts(o, {.written = 5, .unit_bytes = 100'000});
  file("2.txt", source_text().substr(0, 20'000));
  in_parts(o, {.written = 1, .unit_bytes = 100'000});
  EXPECT_EQ(found_, 2u);
  in_parts(o, {.unit_bytes = 100'000});
  EXPECT_EQ(found_, 3u);
  o.output_prefix = (out_ / "one").string();
  run_preprocess(o, Log(1));
  expect_same("one_text_document", "parts_text_document");
}

/// If the input shrinks, the end of the previous output must be truncated.
TEST_F(PreprocessPartsTest, TruncatesOutputWhenInputShrinks) {
  const std::string a = file("a.txt", source_text().substr(0, 300'000)), b = file("b.txt", source_text()),
                    c = file("c.txt", "end");
  PreprocessOptions o = options({a, b, c}, "parts");
  in_parts(o, {.processes = 2, .written = 2, .unit_bytes = i64{1} << 30});
  o.input = {a};
  in_parts(o, {.unit_bytes = i64{1} << 30});
  EXPECT_EQ(found_, 1u);
  o.output_prefix = (out_ / "one").string();
  run_preprocess(o, Log(1));
  expect_same("one_text_document", "parts_text_document");
}

TEST_F(PreprocessPartsTest, RejectsPartsOfIncompatibleVersion) {
  const PreprocessOptions o = options({file("a.txt", source_text().substr(0, 9'000))}, "d");
  in_parts(o, {.written = 0});
  const Path description = PartsFolder(o, {"text"}).path() / "preprocess.json";
  auto json = nlohmann::ordered_json::parse(read_text_file(description));
  json.erase("version");
  write_file_atomic(description, json.dump(2) + "\n");
  EXPECT_THAT(input_error([&] { in_parts(o, {}); }), HasSubstr("d.parts: holds parts made with a different"));
}

TEST(AlignedBlockRangeTest, ContainsOnlyUnsharedBlocks) {
  constexpr i64 k = AlignedBlockRange::kBytes;
  const auto blocks = [](i64 begin, i64 end) {
    const AlignedBlockRange found(begin, end);
    return std::pair(found.begin, found.end);
  };
  EXPECT_EQ(blocks(0, 2 * k), std::pair(i64{0}, 2 * k));
  EXPECT_EQ(blocks(1, 2 * k), std::pair(k, 2 * k));
  EXPECT_EQ(blocks(0, 2 * k - 1), std::pair(i64{0}, k));
  EXPECT_EQ(blocks(k - 1, 3 * k + 1), std::pair(k, 3 * k));
  for (const auto& [begin, end] : {std::pair(i64{0}, i64{0}), std::pair(i64{0}, k - 1), std::pair(i64{1}, k),
                                   std::pair(k - 1, k + 1), std::pair(k, k + 1), std::pair(k + 1, k + 5)}) {
    const AlignedBlockRange none(begin, end);
    EXPECT_EQ(none.begin, none.end) << begin << " " << end;
    EXPECT_GE(none.begin, begin);
    EXPECT_LE(none.end, end);
  }
}

/// Each process writes to a separate file here, to show which process wrote each block. The blocks of process 0 are
/// assembled from the part files.
TEST_F(PreprocessPartsTest, EveryBlockIsWrittenByOneProcess) {
  PreprocessOptions o = options({file("a.txt", source_text() + source_text())}, "one");
  run_preprocess(o, Log(1));
  const std::string whole = read_text_file(out_ / "one_text_document.bin");
  o.output_prefix = (out_ / "shared").string();
  const Tokenizer tokenizer{Path(o.tokenizer_model)};
  const std::vector<WorkUnit> units = make_work_units(o.input, o.format(), 700'000);
  ASSERT_GE(units.size(), 3u);
  const PartsFolder folder(o, {"text"});
  folder.open(tokenizer);
  TokenMemory memory;
  UnitPlacement output_ranges(folder, units);
  std::vector<int> writer_of(whole.size() / AlignedBlockRange::kBytes + 1, -1);
  for (std::size_t unit = 0; unit < units.size(); ++unit) {
    const auto tokens = tokenize_unit(folder, units[unit], tokenizer, 2, memory, [](i64) {});
    output_ranges.add(unit, tokens->part().metadata);
    std::filesystem::remove(folder.shared_output_path("text"));
    PartWriter(folder).write(*tokens, *output_ranges.wait_for(unit, {}));
    const std::string written = read_text_file(folder.shared_output_path("text"));
    EXPECT_EQ(written.size() % AlignedBlockRange::kBytes, 0u);
    for (std::size_t at = 0; at < written.size(); ++at) {
      if (written[at] == '\0') continue;
      int& writer = writer_of[at / AlignedBlockRange::kBytes];
      ASSERT_TRUE(writer == -1 || writer == static_cast<int>(unit)) << at;
      writer = static_cast<int>(unit);
      ASSERT_EQ(written[at], whole[at]) << at;
    }
  }
  EXPECT_LE(std::count(writer_of.begin(), writer_of.end(), -1), std::ssize(units)) << "process 0 wrote the rest";
}

TEST_F(PreprocessPartsTest, MergedDatasetsMatchDatasetOfAllTexts) {
  const std::string a = file("a.txt", source_text().substr(0, 50'000)), b = file("b.txt", "one\n\ntwo\n\n"),
                    c = file("c.txt", source_text().substr(50'000, 9'000));
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
  EXPECT_THAT(error(prefixes, "a_text_document"), HasSubstr("is one of the datasets to merge"));
  DatasetInfo other = *read_dataset_info(prefixes[1]);
  other.tokenizer_checksum = "0123";
  write_dataset_info(prefixes[1], other);
  EXPECT_THAT(error(prefixes, "x"), HasSubstr("b_text_document.json: the dataset was made with a different tokenizer"));
  other = *read_dataset_info(prefixes[0]);
  other.append_eod = false;
  write_dataset_info(prefixes[1], other);
  EXPECT_THAT(error(prefixes, "x"), HasSubstr("without an <eod> after each document"));
  EXPECT_FALSE(std::filesystem::exists(out_ / "x.bin"));

  // If one of the datasets has no info file, the merged one has none either.
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
