#include "base/file.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "base/check.h"

namespace mcpp {
namespace {

class FileTest : public testing::Test {
 protected:
  FileTest() { std::filesystem::create_directories(folder_); }
  ~FileTest() override { std::filesystem::remove_all(folder_); }
  const Path folder_ = Path(testing::TempDir()) /
                       ("file_test_" + std::string(testing::UnitTest::GetInstance()->current_test_info()->name()));
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
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_), {}), 1) << "a temporary file was left behind";
}

TEST_F(FileTest, ErrorsNameThePath) {
  try {
    MappedFile file(folder_ / "missing");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::BadInput);
    EXPECT_NE(std::string(error.what()).find("missing"), std::string::npos);
  }
  EXPECT_THROW(MappedFile{folder_}, Error);
  EXPECT_THROW(AtomicFile(folder_ / "no/such/dir/x"), Error);
}

TEST_F(FileTest, EmptyFileMapsToNothing) {
  write_file_atomic(folder_ / "empty", "");
  EXPECT_TRUE(MappedFile(folder_ / "empty").bytes().empty());
}

TEST(Checksum, IsXxh3) {
  EXPECT_EQ(checksum_hex({}), "99aa06d3014798d86001c324468d497f");
}

}  // namespace
}  // namespace mcpp
