#include "checkpoint/save/block_writer.h"

#include "tests/checkpoint/faulty_files.h"
#include "tests/checkpoint/fixture.h"

namespace mcpp {
namespace {

using test::FaultyFiles;

constexpr std::size_t kBytes = (std::size_t{21} << 20) + 4099;  // several blocks, the last of them not aligned

std::string numbered_bytes() {
  std::string bytes(kBytes, '\0');
  for (std::size_t i = 0; i < kBytes; ++i) bytes[i] = static_cast<char>((i * 2654435761U) >> 13);
  return bytes;
}

class Blocks : public CheckpointTest {
 protected:
  /// In pieces of many sizes.
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

TEST_F(Blocks, AreTheBytesThatWereGiven) {
  const std::string bytes = numbered_bytes();
  for (const std::size_t size : {std::size_t{0}, std::size_t{1}, std::size_t{4096}, std::size_t{8} << 20, kBytes})
    EXPECT_TRUE(read_text_file(write(bytes.substr(0, size), FileSystem())) == bytes.substr(0, size)) << size;
}

TEST_F(Blocks, GoThroughThePageCacheWhereTheyCannotGoPastIt) {
  const std::string bytes = numbered_bytes();
  FaultyFiles files;
  files.cannot_be_direct = true;
  EXPECT_TRUE(read_text_file(write(bytes, files)) == bytes);
}

TEST_F(Blocks, AreWholeWhenTheDiskTakesLessAtATime) {
  const std::string bytes = numbered_bytes();
  for (const std::size_t piece : {std::size_t{1} << 20, std::size_t{100001}}) {
    FaultyFiles files;
    files.piece = piece;
    EXPECT_TRUE(read_text_file(write(bytes, files)) == bytes) << piece;
  }
}

TEST_F(Blocks, TellOfAFullDiskWheneverItIs) {
  const std::string bytes = numbered_bytes();
  for (const std::size_t room : {std::size_t{0}, std::size_t{5} << 20, kBytes - 1}) {
    FaultyFiles files;
    files.full_at = static_cast<i64>(room);
    EXPECT_CONTAINS(error_of([&] { write(bytes, files); }), "No space left") << room;
  }
}

}  // namespace
}  // namespace mcpp
