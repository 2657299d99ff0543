#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "base/file.h"
#include "tests/support/disk_folder.h"

namespace mcpp {
namespace {

TEST(OpenDirectTest, OpensOnlyRegularFilesOnDisk) {
  const test::DiskFolder disk;
  write_file_atomic(disk / "file", "bytes");
  struct statfs info {};
  ASSERT_EQ(::statfs(disk.path().c_str(), &info), 0);
  if (info.f_type == EXT4_SUPER_MAGIC) {
    const int file = open_direct(disk / "file", O_RDONLY);
    EXPECT_GE(file, 0);
    ::close(file);
  }
  EXPECT_EQ(open_direct("/proc/self/status", O_RDONLY), -1);
  EXPECT_EQ(open_direct(disk / "missing", O_RDONLY), -1);
  if (!test::is_in_memory("/dev/shm")) return;
  const test::ScratchFolder memory("/dev/shm");
  write_file_atomic(memory / "file", "bytes");
  EXPECT_EQ(open_direct(memory / "file", O_RDONLY), -1);
}

}  // namespace
}  // namespace mcpp
