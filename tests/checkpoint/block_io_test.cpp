#include "checkpoint/format/block_io.h"

#include "base/checksum.h"
#include "tests/checkpoint/checkpoint_fixture.h"
#include "tests/checkpoint/faulty_files.h"

namespace mcpp {
namespace {

class BlockReaderTest : public CheckpointTest, public testing::WithParamInterface<ReadMode> {
 protected:
  Path file(const std::string& name, const std::string& content) const {
    write_file_atomic(folder_ / name, content);
    return folder_ / name;
  }

  static std::string text(BlockReader& blocks, const InputFile& file, i64 offset, i64 bytes, i64 max_bytes) {
    std::string result;
    while (static_cast<i64>(result.size()) < bytes) {
      const i64 done = static_cast<i64>(result.size());
      const std::span<const std::byte> chunk = blocks.at(file, offset + done, std::min(max_bytes, bytes - done));
      EXPECT_FALSE(chunk.empty());
      result.append(reinterpret_cast<const char*>(chunk.data()), chunk.size());
    }
    return result;
  }
};

TEST_P(BlockReaderTest, ReturnsBytesOfDeclaredRanges) {
  const std::string a = numbered_text(kSeveralBlocks), b = numbered_text(kSeveralBlocks, 77);
  const InputFile first(file("a", a)), second(file("b", b));
  struct Range {
    const InputFile* file;
    i64 offset, bytes;
  };
  // Ranges that are close together and far apart, at the start and the end of a file, in two files. One is skipped
  // below.
  const std::vector<Range> ranges = {{&first, 0, 1},
                                     {&first, 5, 100},
                                     {&first, 4096, 9 << 20},
                                     {&first, 17 << 20, 1},
                                     {&second, 4095, 8192},
                                     {&second, (9 << 20) + 4, kSeveralBlocks - (9 << 20) - 4},
                                     {&first, kSeveralBlocks - 1, 1}};
  for (const i64 max_bytes : {i64{4} << 20, i64{100001}}) {
    for (std::size_t skipped = 0; skipped <= ranges.size(); ++skipped) {
      BlockReader blocks;
      for (const Range& range : ranges) blocks.declare(*range.file, range.offset, range.bytes, GetParam());
      for (const Range& range : ranges) {
        if (&range == ranges.data() + skipped) continue;
        const std::string& whole = range.file == &first ? a : b;
        ASSERT_TRUE(text(blocks, *range.file, range.offset, range.bytes, max_bytes) ==
                    whole.substr(static_cast<std::size_t>(range.offset), static_cast<std::size_t>(range.bytes)))
            << range.offset << " of " << range.file->path();
      }
    }
  }
}

TEST_P(BlockReaderTest, NamesTruncatedFile) {
  const InputFile input(file("a", numbered_text(kSeveralBlocks)));
  BlockReader blocks;
  blocks.declare(input, 0, kSeveralBlocks + 1, GetParam());
  text(blocks, input, 0, kSeveralBlocks / BlockMemory::kBlockBytes * BlockMemory::kBlockBytes,
       kSeveralBlocks);  // The existing part of the file is read.
  EXPECT_CONTAINS(error_of([&] { blocks.at(input, kSeveralBlocks - 1, 1); }),
                  str(input.path().string(), " ends before byte"));
}

/// Only a forged file has such ranges: an element of the second range crosses the end of the first.
TEST_P(BlockReaderTest, ReturnsCompleteElementsWhenRangesOverlap) {
  const std::string text = numbered_text(kSeveralBlocks);
  const InputFile input(file("a", text));
  BlockReader blocks;
  blocks.declare(input, 4096, 6, GetParam());
  blocks.declare(input, 4100, 12, GetParam());
  EXPECT_EQ(blocks.at(input, 4096, 6, 2).size(), 6);
  const std::span<const std::byte> bytes = blocks.at(input, 4100, 12, 4);
  ASSERT_EQ(bytes.size(), 12);
  EXPECT_EQ(std::memcmp(bytes.data(), text.data() + 4100, 12), 0);
}

TEST_P(BlockReaderTest, RejectsUndeclaredRange) {
  const InputFile input(file("a", numbered_text(kSeveralBlocks)));
  BlockReader blocks;
  blocks.declare(input, 0, 100, GetParam());
  EXPECT_CONTAINS(error_of([&] { blocks.at(input, 5 << 20, 1); }), "was not expected");
}

TEST_P(BlockReaderTest, CanBeDestroyedBeforeAllBlocksAreRead) {
  const InputFile input(file("a", numbered_text(kSeveralBlocks)));
  BlockReader unused, begun;
  for (BlockReader* blocks : {&unused, &begun}) blocks->declare(input, 0, kSeveralBlocks, GetParam());
  // The read-ahead thread waits for a block to be used and ends with the reader.
  EXPECT_FALSE(begun.at(input, 0, 1).empty());
}

INSTANTIATE_TEST_SUITE_P(Modes, BlockReaderTest, testing::Values(ReadMode::PageCache, ReadMode::Direct),
                         [](const auto& mode) { return mode.param == ReadMode::Direct ? "Direct" : "PageCache"; });

using FileChecksumTest = CheckpointTest;

TEST_F(FileChecksumTest, MatchesHashOfEntireFile) {
  for (const i64 bytes : {i64{0}, i64{1}, i64{4096}, i64{8} << 20, kSeveralBlocks}) {
    const std::string text = numbered_text(bytes);
    write_file_atomic(folder_ / "file", text);
    i64 reported_bytes = 0;
    EXPECT_EQ(file_checksum(InputFile(folder_ / "file"), [&](i64 more) { reported_bytes += more; }), checksum_hex(text))
        << bytes;
    EXPECT_EQ(reported_bytes, bytes);
  }
}

using test::FaultyFiles;

class BlockWriterTest : public CheckpointTest {
 protected:
  /// Writes `bytes` in chunks of many sizes and returns the path of the file.
  Path write(std::string_view bytes, const FileSystem& files) const {
    Path path = folder_ / "file";
    write_file_atomic(path, std::string(bytes.size(), 'x'));
    OutputFile file(path, files);
    BlockWriter blocks(file);
    for (std::size_t at = 0, count = 1; at < bytes.size(); at += count, count = count * 7 % 1000003)
      blocks.write(std::as_bytes(std::span(bytes.substr(at, count))));
    blocks.finish();
    file.flush();
    return path;
  }
};

TEST_F(BlockWriterTest, WritesAllBytes) {
  const std::string bytes = numbered_text(kSeveralBlocks);
  for (const i64 size : {i64{0}, i64{1}, i64{4096}, i64{8} << 20, kSeveralBlocks}) {
    const std::string some = bytes.substr(0, static_cast<std::size_t>(size));
    EXPECT_TRUE(read_text_file(write(some, FileSystem())) == some) << size;
  }
}

TEST_F(BlockWriterTest, FallsBackToPageCacheWhenDirectWritesFail) {
  const std::string bytes = numbered_text(kSeveralBlocks);
  FaultyFiles files;
  files.cannot_be_direct = true;
  EXPECT_TRUE(read_text_file(write(bytes, files)) == bytes);
}

TEST_F(BlockWriterTest, ContinuesShortWrites) {
  const std::string bytes = numbered_text(kSeveralBlocks);
  for (const std::size_t chunk : {std::size_t{1} << 20, std::size_t{100001}}) {
    FaultyFiles files;
    files.chunk = chunk;
    EXPECT_TRUE(read_text_file(write(bytes, files)) == bytes) << chunk;
  }
}

TEST_F(BlockWriterTest, ReportsFullDiskAtAnyPosition) {
  const std::string bytes = numbered_text(kSeveralBlocks);
  for (const i64 capacity : {i64{0}, i64{5} << 20, kSeveralBlocks - 1}) {
    FaultyFiles files;
    files.full_at = capacity;
    EXPECT_CONTAINS(error_of([&] { write(bytes, files); }), "No space left") << capacity;
  }
}

}  // namespace
}  // namespace mcpp
