#include "base/io/open_direct.h"

#include <fcntl.h>
#include <gtest/gtest.h>

#include "tests/support/scratch_folder.h"

namespace mcpp {
namespace {

TEST(OpenDirect, IsForFilesOfDisksAlone) {
  const test::ScratchFolder memory("/dev/shm");
  write_file_atomic(memory / "file", "bytes");
  EXPECT_EQ(open_direct(memory / "file", O_RDONLY), -1);
  EXPECT_EQ(open_direct("/proc/self/status", O_RDONLY), -1);
  EXPECT_EQ(open_direct(memory / "missing", O_RDONLY), -1);
}

}  // namespace
}  // namespace mcpp
