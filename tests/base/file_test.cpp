#include "base/file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>

#include "tests/support/errors.h"
#include "tests/support/scratch_folder.h"

namespace mcpp {
namespace {

class FileTest : public testing::Test {
 protected:
  const test::ScratchFolder scratch_;
  const Path& folder_ = scratch_.path();
};

TEST_F(FileTest, AtomicFileAppearsOnlyOnCommit) {
  const Path path = folder_ / "a.txt";
  write_file_atomic(path, "old");
  {
    AtomicFile file(path);
    file.write("new");
    EXPECT_EQ(read_text_file(path), "old");
  }
  EXPECT_EQ(read_text_file(path), "old");
  {
    AtomicFile file(path);
    file.write("new!");
    file.write_at(0, std::as_bytes(std::span("N", 1)));
    file.commit();
  }
  EXPECT_EQ(read_text_file(path), "New!");
  EXPECT_EQ(scratch_.count(), 1u) << "a temporary file was left behind";
}

TEST_F(FileTest, ConcurrentWritersOfSamePathDoNotInterfere) {
  const Path path = folder_ / "a.txt";
  AtomicFile first(path), second(path);
  first.write("first");
  second.write("2nd");
  second.commit();
  EXPECT_EQ(read_text_file(path), "2nd");
  first.commit();
  EXPECT_EQ(read_text_file(path), "first");
  EXPECT_EQ(scratch_.count(), 1u) << "a temporary file was left behind";
}

TEST_F(FileTest, LeavesNoTempFileWhenKilled) {
  write_file_atomic(folder_ / "a.txt", "old");
  const pid_t child = ::fork();
  if (child == 0) {
    AtomicFile file(folder_ / "a.txt");
    file.write("half of the new");
    ::kill(::getpid(), SIGKILL);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_TRUE(WIFSIGNALED(status));
  EXPECT_EQ(read_text_file(folder_ / "a.txt"), "old");
  EXPECT_EQ(scratch_.count(), 1u) << "a temporary file was left behind";
}

TEST_F(FileTest, ReportsTargetOfDanglingLinks) {
  std::filesystem::create_symlink("absent", folder_ / "link");
  EXPECT_THAT(test::input_error([&] { check_path_exists(folder_ / "link"); }),
              testing::HasSubstr("link, a link to absent: No such file"));
  EXPECT_THAT(test::input_error([&] { read_text_file(folder_ / "link"); }), testing::HasSubstr("a link to absent"));
}

TEST_F(FileTest, WritesThroughSymbolicLinks) {
  write_file_atomic(folder_ / "file", "old");
  std::filesystem::create_symlink("file", folder_ / "link");
  write_file_atomic(folder_ / "link", "new");
  EXPECT_TRUE(std::filesystem::is_symlink(folder_ / "link"));
  EXPECT_EQ(read_text_file(folder_ / "file"), "new");
}

/// A writer with access to /dev must not replace /dev/null with a file.
TEST_F(FileTest, RefusesToReplaceDevicesAndPipes) {
  ASSERT_EQ(::mkfifo((folder_ / "pipe").c_str(), 0600), 0);
  std::filesystem::create_symlink("/dev/null", folder_ / "link");
  for (const char* name : {"pipe", "link"})
    EXPECT_THAT(test::input_error([&] { AtomicFile file(folder_ / name); }),
                testing::HasSubstr(std::string(name) + " is a device or pipe"));
  EXPECT_TRUE(std::filesystem::is_fifo(folder_ / "pipe"));
}

TEST_F(FileTest, ErrorsNamePath) {
  EXPECT_NE(test::input_error([&] { MappedFile file(folder_ / "missing"); }).find("missing"), std::string::npos);
  EXPECT_THROW(MappedFile{folder_}, Error);
  EXPECT_THROW(AtomicFile(folder_ / "no/such/dir/x"), Error);
}

TEST_F(FileTest, RefusesToReadPipesInsteadOfBlocking) {
  ASSERT_EQ(::mkfifo((folder_ / "pipe").c_str(), 0600), 0);
  EXPECT_THAT(test::input_error([&] { read_text_file(folder_ / "pipe"); }),
              testing::HasSubstr("is not a regular file"));
}

TEST_F(FileTest, MapsEmptyFileToEmptySpan) {
  write_file_atomic(folder_ / "empty", "");
  EXPECT_TRUE(MappedFile(folder_ / "empty").bytes().empty());
}

TEST(ChecksumTest, MatchesXxh3) {
  EXPECT_EQ(checksum_hex(std::span<const std::byte>()), "99aa06d3014798d86001c324468d497f");
}

}  // namespace
}  // namespace mcpp
