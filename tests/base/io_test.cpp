// Scratch files and asynchronous file transfers.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstring>
#include <vector>

#include "base/io/scratch_file.h"
#include "base/io/transfer_queue.h"
#include "base/machine.h"
#include "tests/support/disk_folder.h"
#include "tests/support/errors.h"

namespace mcpp {
namespace {

using Kind = FileTransfer::Kind;

void fill(std::span<std::byte> bytes, unsigned seed) {
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>((i * 31 + i / 4096 + seed) & 255);
}

bool same(std::span<const std::byte> a, std::span<const std::byte> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size()) == 0;
}

class TransferQueueTest : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    queue_ = GetParam() == "threads" ? make_thread_queue() : make_ring_queue();
    if (!queue_) GTEST_SKIP() << "the system does not permit io_uring here";
  }

  const test::DiskFolder folder_;
  std::unique_ptr<TransferQueue> queue_;
};

/// Starts more chunks than can be in flight at once, and starts all of them before waiting.
TEST_P(TransferQueueTest, ReadsBackWrittenBytesWithManyTransfersInFlight) {
  constexpr i64 kBytes = 3 * TransferQueue::kChunk + 8192;
  constexpr int kTransfers = 100;
  ScratchFile file(folder_.path(), kTransfers * kBytes, "key");
  std::vector<std::unique_ptr<AlignedBytes>> memory;
  std::vector<TransferQueue::Ticket> tickets;
  const auto start_all = [&](Kind kind) {
    for (int i = 0; i < kTransfers; ++i) {
      const std::span<std::byte> bytes = memory[static_cast<std::size_t>(i)]->bytes();
      tickets.push_back(queue_->start(file.transfer(kind, i * kBytes, bytes)));
    }
    for (; !tickets.empty(); tickets.pop_back()) EXPECT_EQ(queue_->wait(tickets.back()), 0);
  };
  for (unsigned i = 0; i < kTransfers; ++i)
    fill(memory.emplace_back(std::make_unique<AlignedBytes>(kBytes))->bytes(), i);
  start_all(Kind::Write);
  for (const auto& bytes : memory) std::memset(bytes->bytes().data(), 0, kBytes);
  start_all(Kind::Read);
  AlignedBytes expected(kBytes);
  for (unsigned i = 0; i < kTransfers; ++i) {
    fill(expected.bytes(), i);
    EXPECT_TRUE(same(memory[i]->bytes(), expected.bytes())) << i;
  }
}

TEST_P(TransferQueueTest, WaitReturnsErrnoOfFailedTransfer) {
  ScratchFile file(folder_.path(), 8192, "key");
  const AlignedBytes memory(8192);
  FileTransfer transfer = file.transfer(Kind::Read, 0, memory.bytes());
  transfer.file = -1;
  EXPECT_EQ(queue_->wait(queue_->start(transfer)), EBADF);
  transfer.file = file.descriptor();
  transfer.offset = 4096;  // half of the range is past the end of the file
  EXPECT_EQ(queue_->wait(queue_->start(transfer)), EIO);
  transfer.offset = 0;
  EXPECT_EQ(queue_->wait(queue_->start(transfer)), 0);
}

/// No call waits for the last transfers. The queue must finish them before their memory is released.
TEST_P(TransferQueueTest, DestructorFinishesPendingTransfers) {
  ScratchFile file(folder_.path(), 4 << 20, "key");
  AlignedBytes memory(4 << 20), back(4 << 20);
  fill(memory.bytes(), 5);
  queue_->start(file.transfer(Kind::Write, 0, memory.bytes()));
  queue_.reset();
  EXPECT_EQ(transfer_now(file.transfer(Kind::Read, 0, back.bytes())), 0);
  EXPECT_TRUE(same(memory.bytes(), back.bytes()));
}

INSTANTIATE_TEST_SUITE_P(Kinds, TransferQueueTest, testing::Values("io_uring", "threads"),
                         [](const auto& param_info) { return param_info.param; });

TEST(ScratchFileTest, HasNoNameAndWorksAfterFolderIsRemoved) {
  const test::DiskFolder folder;
  {
    ScratchFile file(folder / "made", 4096, "key");
    EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder / "made"), {}), 0) << "it has a name";
    AlignedBytes a(4096), b(4096);
    fill(a.bytes(), 1);
    EXPECT_EQ(transfer_now(file.transfer(Kind::Write, 0, a.bytes())), 0);
    EXPECT_EQ(transfer_now(file.transfer(Kind::Read, 0, b.bytes())), 0);
    EXPECT_TRUE(same(a.bytes(), b.bytes()));
    std::filesystem::remove_all(folder / "made");  // removes the folder while the file is open
    EXPECT_EQ(transfer_now(file.transfer(Kind::Read, 0, b.bytes())), 0);
    EXPECT_TRUE(same(a.bytes(), b.bytes()));
    EXPECT_EQ(transfer_now(file.transfer(Kind::Read, 4096, b.bytes())), EIO) << "the file ends";
  }
}

/// Removes named files only if their process has ended.
TEST(ScratchFileTest, RemovesFilesOfDeadProcesses) {
  const test::DiskFolder folder;
  const std::string random = ".0123456789abcdef", begin = "scratch.tmp-" + host_name();
  const Path dead = folder / (begin + "-999999999" + random);
  const Path others[]{folder / (begin + "-1" + random), folder / ("scratch.tmp-another-host-999999999" + random),
                      folder / ("mine.tmp-" + host_name() + "-999999999" + random)};
  write_file_atomic(dead, "x");
  for (const Path& other : others) write_file_atomic(other, "x");
  const ScratchFile file(folder.path(), 4096, "key");
  EXPECT_FALSE(std::filesystem::exists(dead));
  for (const Path& other : others) EXPECT_TRUE(std::filesystem::exists(other)) << other;
}

/// A checkpoint save that reads offloaded state fails in the same way: the run must be restarted, as after any
/// other loss.
TEST(FileRegionTest, EndsRunWhenDiskFails) {
  const test::DiskFolder folder;
  auto file = std::make_shared<ScratchFile>(folder.path(), 8192, "key");
  FileRegion region(file, 4096, 4096, "segment 3 of the weights");
  std::vector<std::byte> bytes(100, std::byte{1});
  region.write(0, bytes);
  ASSERT_EQ(::ftruncate(file->descriptor(), 4096), 0);
  EXPECT_CONTAINS(test::error_with(ExitCode::PeerLost, [&] { region.read(0, bytes); }),
                  "cannot read the scratch file in " + folder.path().string() +
                      ": Input/output error; the stored part of segment 3 of the weights is lost. Restart the run");
  file = std::make_shared<ScratchFile>(folder.path(), 8192, "key");
  FileRegion unwritable(file, 4096, 4096, "the weights");
  const int full = ::open("/dev/full", O_RDWR);
  ASSERT_GE(::dup2(full, file->descriptor()), 0);
  ::close(full);
  EXPECT_CONTAINS(test::error_with(ExitCode::PeerLost, [&] { unwritable.write(0, bytes); }),
                  "cannot write the scratch file in " + folder.path().string() + ": No space left on device");
}

TEST(ScratchFileTest, RejectsUnusableFolderOrSize) {
  const test::DiskFolder folder;
  const Path plain = folder / "plain";
  write_file_atomic(plain, "");
  EXPECT_CONTAINS(test::input_error([&] { const ScratchFile file(plain / "below", 4096, "key"); }),
                  "cannot create the directory");
  EXPECT_CONTAINS(test::input_error([&] { const ScratchFile file("/proc/self", 4096, "key"); }),
                  "key: /proc/self: cannot create a file");
  EXPECT_CONTAINS(test::input_error([&] { const ScratchFile file(folder.path(), i64{1} << 58, "key"); }),
                  "key: " + folder.path().string());
  EXPECT_CONTAINS(test::input_error([&] { const ScratchFile file(folder.path(), i64{1} << 58, "key"); }),
                  "needs 256.00 PiB");
  if (test::is_in_memory("/dev/shm")) {
    EXPECT_CONTAINS(test::input_error([&] { const ScratchFile file("/dev/shm", 4096, "key"); }),
                    "is in memory (tmpfs)");
  }
}

TEST(ScratchFileTest, RejectsSizeBeyondFileSizeLimit) {
  const test::DiskFolder folder;
  struct rlimit before {};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  struct rlimit small = before;
  small.rlim_cur = 1 << 20;
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  EXPECT_CONTAINS(test::input_error([&] { const ScratchFile file(folder.path(), 2 << 20, "key"); }), "ulimit -f");
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
}

}  // namespace
}  // namespace mcpp
