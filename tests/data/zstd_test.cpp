// Input text compressed with zstd.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <zstd.h>

#include "data/preprocess/input_files.h"
#include "tests/support/build.h"
#include "tests/support/errors.h"
#include "tests/support/scratch_folder.h"

namespace mcpp {
namespace {

using test::input_error;
using testing::AllOf;
using testing::HasSubstr;

/// Returns one frame with a checksum, as the zstd program writes it for a stream of unknown length.
std::string frame(const std::string& text, int window_log = 0) {
  const std::unique_ptr<ZSTD_CCtx, std::size_t (*)(ZSTD_CCtx*)> context(ZSTD_createCCtx(), &ZSTD_freeCCtx);
  ZSTD_CCtx_setParameter(context.get(), ZSTD_c_checksumFlag, 1);
  if (window_log > 0) ZSTD_CCtx_setParameter(context.get(), ZSTD_c_windowLog, window_log);
  std::string compressed(ZSTD_compressBound(text.size()) + 64, '\0');
  ZSTD_outBuffer out{compressed.data(), compressed.size(), 0};
  ZSTD_inBuffer in{text.data(), text.size(), 0};
  EXPECT_EQ(ZSTD_isError(ZSTD_compressStream2(context.get(), &out, &in, ZSTD_e_continue)), 0u);
  EXPECT_EQ(ZSTD_compressStream2(context.get(), &out, &in, ZSTD_e_end), 0u);
  compressed.resize(out.pos);
  return compressed;
}

std::string skippable_frame(const std::string& content) {
  std::string bytes = "\x5A\x2A\x4D\x18";
  for (int i = 0; i < 4; ++i) bytes += static_cast<char>(content.size() >> (8 * i));
  return bytes + content;
}

class ZstdTest : public testing::Test {
 protected:
  std::string file(const std::string& name, const std::string& content) {
    write_file_atomic(folder_ / name, content);
    return (folder_ / name).string();
  }
  /// Returns the text of a file, or the error message that rejects it.
  std::string read(const Path& path, std::size_t chunk_bytes = 1 << 16) {
    std::string text;
    const std::string error = input_error([&] {
      TextSource source(path);
      for (TextChunk chunk; source.next(chunk, chunk_bytes, SplitMode::Anywhere);) text += chunk.text;
    });
    return error.empty() ? text : error;
  }

  const std::string text_ = read_text_file(test::source_folder() / "data/tinyshakespeare.txt").substr(0, 700'000);
  test::ScratchFolder folder_;
};

TEST_F(ZstdTest, ReadsEveryFrame) {
  const std::string a = frame(text_.substr(0, 100'000)), none = frame(""), b = frame(text_.substr(100'000));
  for (const std::size_t chunk : {std::size_t{1} << 10, std::size_t{1} << 16, std::size_t{1} << 22})
    EXPECT_EQ(read(file("all.txt.zst", a + none + b + none), chunk), text_) << chunk;
  EXPECT_EQ(read(file("index.zst", a + skippable_frame("an index") + b + skippable_frame(""))), text_);
  EXPECT_EQ(read(file("begins.zst", skippable_frame("detected by content, not by name") + a + b)), text_);
  EXPECT_EQ(read(file("without_ending", a + b)), text_);
  EXPECT_EQ(read(file("none.zst", none)), "");
}

/// A frame without checksum ends with its last block, whose text the decoder may still hold back.
TEST_F(ZstdTest, ReadsFramesWithoutChecksumToEnd) {
  std::string compressed(ZSTD_compressBound(text_.size()), '\0');
  compressed.resize(ZSTD_compress(compressed.data(), compressed.size(), text_.data(), text_.size(), 3));
  for (const std::size_t chunk : {std::size_t{777}, std::size_t{1} << 16})
    EXPECT_EQ(read(file("plain.zst", compressed), chunk), text_) << chunk;
}

TEST_F(ZstdTest, RejectsDamageAndTrailingData) {
  const std::string a = frame(text_);
  const auto expect_rejected = [&](const std::string& content, const char* why) {
    EXPECT_THAT(read(file("d.txt.zst", content)), AllOf(HasSubstr("d.txt.zst: "), HasSubstr(why))) << content.size();
  };
  expect_rejected(a + "plain text", "a zstd frame is followed by trailing garbage");
  expect_rejected(a + std::string(9, '\0'), "is followed by trailing garbage");
  expect_rejected(a + "\x28", "is followed by trailing garbage");
  for (const std::size_t kept : {std::size_t{4}, std::size_t{10}, a.size() / 2, a.size() - 1})
    expect_rejected(a + a.substr(0, kept), "the zstd data ends early");
  for (const std::size_t at : {a.size() / 3, a.size() / 2, a.size() - 2}) {
    std::string flipped = a;
    flipped[at] = static_cast<char>(flipped[at] ^ 0x40);
    expect_rejected(flipped, "the zstd data is damaged");
  }
  expect_rejected(frame(std::string(1000, 'a'), /*window_log=*/28), "needs a window of more than 128 MiB");
  expect_rejected(frame(std::string(std::size_t{32} << 20, 'a')), "200 times as large as its zstd file");
}

TEST_F(ZstdTest, DetectsFormatByName) {
  EXPECT_TRUE(is_json_lines("a.jsonl.zst", InputFormat::Auto));
  EXPECT_TRUE(is_json_lines("a.json.zst", InputFormat::Auto));
  EXPECT_FALSE(is_json_lines("a.txt.zst", InputFormat::Auto));
  EXPECT_FALSE(is_json_lines("a.zst", InputFormat::Auto));
  const std::string path = file("d.jsonl.zst", frame("{\"text\": \"one\"}\n{\"text\": \"two\"}\n{\"text\": 3}\n"));
  InputFiles files({path}, {}, 1 << 20);
  InputFiles::Chunk chunk = *files.next();
  EXPECT_THAT(input_error([&] { parse_chunk(chunk.path, chunk.chunk, {}); }), HasSubstr("d.jsonl.zst:3: "));
}

}  // namespace
}  // namespace mcpp
