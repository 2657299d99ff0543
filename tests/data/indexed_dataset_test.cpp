#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "base/philox.h"
#include "data/preprocess/indexed_writer.h"
#include "tests/data/data_golden.h"

namespace mcpp {
namespace {

using test::input_error;
using test::ScratchFolder;
using testing::HasSubstr;

/// Writes two documents of two sequences (3, 0) and (2, 4). The arrays in .idx are at offsets 34, 50 and 82.
std::string write_small(const ScratchFolder& folder, i64 vocab_size = 100) {
  IndexedDatasetWriter writer(folder / "d", vocab_size);
  const std::vector<i32> tokens{1, 2, 3, 4, 5, 6, 7, 8, 9};
  const std::span all(tokens);
  writer.add_tokens(all.first(1));
  writer.add_tokens(all.subspan(1, 2));
  writer.end_sequence();
  writer.end_sequence();
  writer.end_document();
  writer.add_tokens(all.subspan(3, 2));
  writer.end_sequence();
  writer.add_tokens(all.subspan(5));
  writer.end_sequence();
  writer.end_document();
  writer.finish();
  return read_text_file(folder / "d.idx");
}

std::string open_error(const ScratchFolder& folder) {
  return input_error([&] { IndexedDataset{folder / "d"}; });
}

template <class T>
std::string with(std::string text, std::size_t offset, T value) {
  std::memcpy(text.data() + offset, &value, sizeof value);
  return text;
}

TEST(IndexedDatasetTest, ReadsWrittenDocuments) {
  for (const i64 vocab_size : {100, 65499, 65500}) {
    const ScratchFolder folder;
    write_small(folder, vocab_size);
    const IndexedDataset dataset(folder / "d");
    EXPECT_EQ(dataset.token_type(), vocab_size < 65500 ? TokenType::U16 : TokenType::I32);
    EXPECT_EQ(dataset.num_sequences(), 4);
    EXPECT_EQ(dataset.num_documents(), 2);
    EXPECT_EQ(dataset.num_tokens(), 9);
    EXPECT_EQ(dataset.document_of(1), 0);
    EXPECT_EQ(dataset.document_of(2), 1);
    std::vector<i32> tokens(3);
    dataset.read(3, 1, tokens);
    EXPECT_EQ(tokens, (std::vector<i32>{7, 8, 9}));
    EXPECT_THROW(dataset.read(3, 2, tokens), Error);
  }
}

TEST(IndexedDatasetTest, ReadsEveryIntegerType) {
  const std::pair<TokenType, std::size_t> types[] = {{TokenType::U8, 1},  {TokenType::I8, 1},  {TokenType::I16, 2},
                                                     {TokenType::U16, 2}, {TokenType::I32, 4}, {TokenType::I64, 8}};
  for (const auto& [type, width] : types) {
    const ScratchFolder folder;
    std::string idx = write_small(folder);
    idx = with(idx, 17, static_cast<u8>(type));
    const i64 begins[] = {0, 3, 3, 5};
    for (std::size_t i = 0; i < 4; ++i) idx = with(idx, 50 + 8 * i, begins[i] * static_cast<i64>(width));
    std::string bin;
    for (u64 token = 1; token <= 9; ++token) bin.append(reinterpret_cast<const char*>(&token), width);
    write_file_atomic(folder / "d.idx", idx);
    write_file_atomic(folder / "d.bin", bin);
    std::vector<i32> tokens(4);
    IndexedDataset(folder / "d").read(3, 0, tokens);
    EXPECT_EQ(tokens, (std::vector<i32>{6, 7, 8, 9})) << token_type_name(type);
  }
}

TEST(IndexedDatasetTest, ReportsEachKindOfDamage) {
  const ScratchFolder folder;
  const std::string idx = write_small(folder);
  ASSERT_EQ(idx.size(), 34u + 4 * 12 + 3 * 8);
  const std::pair<std::string, const char*> cases[] = {
      {with(idx, 0, 'X'), "MMIDIDX"},
      {with(idx, 9, u64{2}), "version 2"},
      {with(idx, 17, u8{9}), "dtype code 9"},
      {with(idx, 17, u8{0}), "dtype code 0"},
      {with(idx, 17, u8{7}), "float32"},
      {with(idx, 18, ~u64{0}), "do not fit"},
      {with(idx, 18, u64{5}), "truncated"},
      {with(idx, 18, u64{3}), "damaged"},
      {with(idx, 26, ~u64{0} / 8), "do not fit"},
      {with(idx, 26, u64{0}), "no document entries"},
      {idx.substr(0, 20), "truncated"},
      {idx.substr(0, 60), "truncated"},
      {idx + "x", "damaged"},
      {"", "truncated"},
      {with(idx, 34, i32{-1}), "negative length"},
      {with(idx, 34, i32{2}), "begins at byte 6"},
      {with(idx, 50, i64{-2}), "begins at byte -2"},
      {with(idx, 46, i32{5}), "ends at byte 20"},
      {with(idx, 46, i32{3}), "do not belong together"},
      {with(idx, 82, i64{1}), "first document"},
      {with(idx, 90, i64{5}), "before document 1"},
      {with(idx, 90, i64{-1}), "before document 0"},
      {with(idx, 98, i64{3}), "end at sequence 3"},
  };
  for (const auto& [damaged, message] : cases) {
    write_file_atomic(folder / "d.idx", damaged);
    EXPECT_THAT(open_error(folder), HasSubstr(message));
  }
  write_file_atomic(folder / "d.idx", idx);
  EXPECT_EQ(open_error(folder), "");
  write_file_atomic(folder / "d.bin", read_text_file(folder / "d.bin").substr(1));
  EXPECT_THAT(open_error(folder), HasSubstr("truncated"));
}

TEST(IndexedDatasetTest, NamesMissingFiles) {
  const ScratchFolder folder;
  write_small(folder);
  EXPECT_THAT(input_error([&] { IndexedDataset{folder / "d.bin"}; }), HasSubstr("without .bin"));
  std::filesystem::remove(folder / "d.bin");
  EXPECT_THAT(open_error(folder), HasSubstr("d.bin"));
}

TEST(IndexedDatasetTest, RandomDamageIsReportedOrHarmless) {
  const ScratchFolder folder;
  const std::string idx = write_small(folder);
  for (u32 round = 0; round < 2000; ++round) {
    const Philox4 random = philox4x32(7, {round, 0, 0, 0});
    std::string damaged = idx.substr(0, random[0] % 4 == 0 ? random[1] % idx.size() : idx.size());
    for (u32 i = 0; i < 1 + random[2] % 3 && !damaged.empty(); ++i) {
      const Philox4 change = philox4x32(8, {round, i, 0, 0});
      damaged[change[0] % damaged.size()] = static_cast<char>(change[1]);
    }
    // Written in place, without the fsync of an atomic write, which would take most of the test's time.
    std::FILE* file = std::fopen((folder / "d.idx").c_str(), "wb");
    std::fwrite(damaged.data(), 1, damaged.size(), file);
    std::fclose(file);
    input_error([&] {
      const IndexedDataset dataset(folder / "d");
      for (i64 s = 0; s < dataset.num_sequences(); ++s) {
        std::vector<i32> tokens(static_cast<std::size_t>(dataset.length(s)));
        dataset.read(s, 0, tokens);
        dataset.document_of(s);
      }
    });
  }
}

TEST(IndexedDatasetWriterTest, LeavesNoFilesWhenUnfinished) {
  const ScratchFolder folder;
  {
    IndexedDatasetWriter writer(folder / "d", 100);
    writer.add_document(std::vector<i32>{1, 2, 3});
  }
  EXPECT_EQ(folder.count(), 0u);
}

TEST(IndexedDatasetWriterTest, RejectsIdsOutsideVocabulary) {
  const ScratchFolder folder;
  IndexedDatasetWriter writer(folder / "d", 100);
  EXPECT_THAT(input_error([&] { writer.add_document(std::vector<i32>{1, 100}); }), HasSubstr("token id 100"));
  EXPECT_THAT(input_error([&] { writer.add_document(std::vector<i32>{-1}); }), HasSubstr("token id -1"));
}

}  // namespace
}  // namespace mcpp
