#include "checkpoint/save/shard_file.h"
#include "tests/checkpoint/checkpoint_fixture.h"
#include "tests/checkpoint/faulty_files.h"

namespace mcpp {
namespace {

using test::FaultyFiles;

class BlockWriterTest : public CheckpointTest {
 protected:
  /// Writes `bytes` in pieces of many sizes and returns the path of the file.
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
  for (const std::size_t piece : {std::size_t{1} << 20, std::size_t{100001}}) {
    FaultyFiles files;
    files.piece = piece;
    EXPECT_TRUE(read_text_file(write(bytes, files)) == bytes) << piece;
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
