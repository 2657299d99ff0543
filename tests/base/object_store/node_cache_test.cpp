// Cache of objects on a disk of the node.
#include "base/object_store/node_cache.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <csignal>
#include <ctime>
#include <fstream>
#include <future>

#include "base/machine.h"
#include "base/object_store/cached_object.h"
#include "tests/support/errors.h"
#include "tests/support/s3_server.h"
#include "tests/support/scratch_folder.h"

namespace mcpp {
namespace {

using test::S3Fault;
using test::S3Request;

constexpr i64 kBlock = CachedObject::kBlockBytes;

/// Maximum size of files that this process writes, until the end of the object.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(i64 bytes) : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    ::getrlimit(RLIMIT_FSIZE, &former_);
    const rlimit limit{static_cast<rlim_t>(bytes), former_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileSizeLimit() {
    ::setrlimit(RLIMIT_FSIZE, &former_);
    std::signal(SIGXFSZ, handler_);
  }
  FileSizeLimit(const FileSizeLimit&) = delete;
  FileSizeLimit& operator=(const FileSizeLimit&) = delete;

 private:
  rlimit former_{};
  void (*handler_)(int);
};

class NodeCacheTest : public testing::Test {
 protected:
  NodeCacheTest() {
    for (std::size_t i = 0; i < content_.size(); ++i) content_[i] = static_cast<char>(i * 7 + i / 4096);
    server_.set_object("/bucket/data", content_);
  }

  NodeCacheSettings settings(i64 max_bytes = i64{1} << 30) const { return {folder_ / "cache", max_bytes}; }
  CachedObject open(i64 max_bytes = i64{1} << 30) { return {path_, transfer(), settings(max_bytes)}; }
  std::shared_ptr<S3Transfer> transfer() { return std::make_shared<S3Transfer>(server_.settings(), 4 * kBlock); }
  static std::string read(CachedObject& object, i64 offset, i64 bytes) {
    std::string text(static_cast<std::size_t>(bytes), '\0');
    object.read(offset, std::as_writable_bytes(std::span(text)));
    return text;
  }
  std::string expected(i64 offset, i64 bytes) const {
    return content_.substr(static_cast<std::size_t>(offset), static_cast<std::size_t>(bytes));
  }
  std::size_t downloads() const {
    std::size_t count = 0;
    for (const S3Request& request : server_.requests()) count += request.method == "GET";
    return count;
  }
  Path fetch(NodeCache& cache) {
    S3Transfer transfer(server_.settings(), i64{1} << 20);
    return cache.fetch(path_, transfer.head(path_), transfer);
  }
  /// Returns the files of the cache except its locks.
  std::vector<Path> files() const {
    std::vector<Path> files;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(folder_ / "cache"))
      if (entry.is_regular_file() && entry.path().parent_path().filename() != "locks") files.push_back(entry.path());
    return files;
  }
  void make_old(const Path& file) { set_time(file, 1000); }
  void set_time(const Path& file, std::time_t time) {
    const timespec times[]{{.tv_sec = time, .tv_nsec = 0}, {.tv_sec = time, .tv_nsec = 0}};
    ASSERT_EQ(::utimensat(AT_FDCWD, file.c_str(), times, 0), 0);
  }
  i64 cached_bytes() const {
    i64 sum = 0;
    for (const Path& file : files()) sum += static_cast<i64>(std::filesystem::file_size(file));
    return sum;
  }

  std::string content_ = std::string(static_cast<std::size_t>(5 * kBlock + 1234), '\0');
  const S3Path path_ = S3Path::parse("s3://bucket/data");
  const test::ScratchFolder folder_;
  test::S3Server server_;
};

TEST_F(NodeCacheTest, DownloadsEachBlockOncePerNode) {
  CachedObject first = open(), second = open();
  EXPECT_EQ(read(first, 2 * kBlock - 10, 20), expected(2 * kBlock - 10, 20));
  const std::size_t before = downloads();
  EXPECT_EQ(before, 2U);
  EXPECT_EQ(read(first, kBlock + 5, 100), expected(kBlock + 5, 100));
  EXPECT_EQ(read(second, kBlock + 5, 100), expected(kBlock + 5, 100));
  EXPECT_EQ(downloads(), before);
  EXPECT_EQ(read(second, 5 * kBlock, 1234), expected(5 * kBlock, 1234));
  EXPECT_TRUE(read(second, 0, std::ssize(content_)) == content_);
}

TEST_F(NodeCacheTest, DownloadsBlocksAheadOfSequentialReads) {
  CachedObject object = open();
  for (i64 offset = 0; offset < std::ssize(content_); offset += 1000) {
    const i64 bytes = std::min<i64>(1000, std::ssize(content_) - offset);
    ASSERT_EQ(read(object, offset, bytes), expected(offset, bytes));
  }
  EXPECT_EQ(downloads(), 3U);  // 1, 2 and 3 blocks
}

TEST_F(NodeCacheTest, ReplacesDamagedBlocks) {
  {
    CachedObject object = open();
    read(object, 0, 1);
  }
  for (const Path& file : files()) {
    std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
    stream.seekp(100);
    stream.put('!');
  }
  CachedObject object = open();
  EXPECT_EQ(read(object, 50, 100), expected(50, 100));
  std::filesystem::resize_file(files().at(0), 10);
  EXPECT_EQ(read(object, 50, 100), expected(50, 100));
}

TEST_F(NodeCacheTest, KeepsSizeAndMostRecentlyUsedBlocks) {
  constexpr i64 kLimit = 3 * kBlock;
  CachedObject object = open(kLimit);
  for (const i64 block : {0, 2, 4, 1, 3, 5}) {
    const i64 bytes = std::min<i64>(kBlock, std::ssize(content_) - block * kBlock);
    EXPECT_TRUE(read(object, block * kBlock, bytes) == expected(block * kBlock, bytes));
    for (const Path& file : files()) make_old(file);
  }
  EXPECT_LE(cached_bytes(), kLimit + kBlock);
  EXPECT_TRUE(read(object, 0, std::ssize(content_)) == content_);
}

/// Entries are marked as used every 30 s at most, so one that was marked 80 s ago may have been used 50 s ago.
TEST_F(NodeCacheTest, KeepsEntriesThatMayHaveBeenUsedWithinOneMinute) {
  constexpr i64 kLimit = 6 * kBlock;
  NodeCache cache(settings(kLimit));
  const auto remains = [&](i64 age, const std::string& name) {
    const Path file = settings().folder / "objects" / name;
    write_file_atomic(file, std::string(static_cast<std::size_t>(3 * kBlock), 'x'));
    set_time(file, std::time(nullptr) - age);
    std::filesystem::remove(fetch(cache));
    return std::filesystem::exists(file);
  };
  EXPECT_TRUE(remains(80, "recent"));
  EXPECT_FALSE(remains(95, "recent"));
  const std::string random = ".0123456789abcdef";
  EXPECT_TRUE(remains(1000, "a.tmp-" + process_tag() + random)) << "a file that this process may be writing";
  std::filesystem::remove(settings().folder / "objects" / ("a.tmp-" + process_tag() + random));
  EXPECT_FALSE(remains(1000, "a.tmp-other_host-1" + random));
  EXPECT_FALSE(remains(1000, "a.tmp-b"));
}

TEST_F(NodeCacheTest, ReadsBlocksWithoutSpaceForCopy) {
  CachedObject object = open(/*max_bytes=*/1000);
  EXPECT_TRUE(read(object, 0, std::ssize(content_)) == content_);
  EXPECT_TRUE(files().empty());
}

/// A limit of file sizes makes writes fail like a full disk.
TEST_F(NodeCacheTest, ReadsBlocksAndReportsCopiesWhenDiskIsFull) {
  NodeCache cache(settings());
  CachedObject object = open();
  const FileSizeLimit limit(kBlock / 2);
  EXPECT_TRUE(read(object, 0, std::ssize(content_)) == content_);
  EXPECT_CONTAINS(test::input_error([&] { fetch(cache); }), "cannot reserve");
  EXPECT_EQ(files().size(), 1U);  // the last block, which is small enough
}

TEST_F(NodeCacheTest, NeverReadsOldContentOfReplacedObject) {
  CachedObject object = open();
  EXPECT_EQ(read(object, 0, 4), expected(0, 4));
  server_.set_object("/bucket/data", std::string(content_.size(), 'x'));
  EXPECT_CONTAINS(test::input_error([&] { read(object, 3 * kBlock, 4); }), "was replaced");
  CachedObject reopened = open();
  EXPECT_EQ(read(reopened, 0, 4), "xxxx");
}

TEST_F(NodeCacheTest, FetchesCopyOnceForConcurrentReaders) {
  std::vector<std::future<std::string>> readers;
  for (int i = 0; i < 4; ++i) {
    readers.push_back(std::async(std::launch::async, [&] {
      NodeCache cache(settings());
      return read_text_file(fetch(cache));
    }));
  }
  for (auto& reader : readers) EXPECT_TRUE(reader.get() == content_);
  EXPECT_EQ(downloads(), 6U);  // parts of 1 MiB
  EXPECT_EQ(files().size(), 1U);
}

TEST_F(NodeCacheTest, LeavesNoPartialCopyWhenServerFails) {
  server_.set_faults([](const S3Request& request) {
    const auto range = request.headers.find("range");
    return S3Fault{.status = range != request.headers.end() && range->second.starts_with("bytes=2097152") ? 503 : 0};
  });
  NodeCache cache(settings());
  test::error_with(ExitCode::PeerLost, [&] { fetch(cache); });
  EXPECT_TRUE(files().empty());
  server_.set_faults({});
  EXPECT_TRUE(read_text_file(fetch(cache)) == content_);
}

TEST_F(NodeCacheTest, SharesThreadsBetweenObjects) {
  const std::shared_ptr<S3Transfer> shared = transfer();
  const auto threads = [] {
    const std::filesystem::directory_iterator tasks("/proc/self/task");
    return std::distance(begin(tasks), end(tasks));
  };
  std::vector<std::unique_ptr<CachedObject>> objects;
  const auto add = [&] {
    objects.push_back(std::make_unique<CachedObject>(path_, shared, settings()));
    EXPECT_EQ(read(*objects.back(), 0, 10), expected(0, 10));
  };
  add();
  const auto with_one = threads();
  for (int i = 0; i < 20; ++i) add();
  EXPECT_EQ(threads(), with_one);
  for (const Path& file : files()) std::filesystem::remove(file);
  std::vector<std::future<bool>> readers;
  for (const auto& object : objects)
    readers.push_back(
        std::async(std::launch::async, [&] { return read(*object, 0, std::ssize(content_)) == content_; }));
  for (auto& reader : readers) EXPECT_TRUE(reader.get());
}

TEST_F(NodeCacheTest, RejectsObjectsLargerThanCache) {
  NodeCache cache(settings(/*max_bytes=*/1000));
  EXPECT_CONTAINS(test::input_error([&] { fetch(cache); }), "MEGATRON_CPP_CACHE_BYTES");
}

}  // namespace
}  // namespace mcpp
