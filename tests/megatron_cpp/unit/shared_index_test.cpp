// Ranks are threads on two simulated nodes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <atomic>
#include <csignal>
#include <ctime>
#include <thread>

#include "comm/local.h"
#include "comm/metered.h"
#include "comm/watchdog/watchdog.h"
#include "data/dataset/index/index_cache.h"
#include "megatron_cpp/setup/datasets/dataset_provider.h"
#include "tests/support/errors.h"
#include "tests/support/scratch_folder.h"

namespace mcpp::shared_index_test {
namespace {

using namespace std::chrono_literals;
using testing::Each;
using testing::HasSubstr;
using Arrays = std::vector<std::vector<u32>>;

constexpr int kRanks = 4, kPerNode = 2;

/// Function that each rank runs with the others, on two nodes.
using OnRank = std::function<void(int rank, const SharedIndexRanks&)>;

void on_two_nodes(
    const OnRank& f, const std::function<int(int rank)>& signal = [](int) { return 0; }) {
  run_local_ranks(kRanks, [&](Communicator& world, int rank) {
    const auto node = world.split(rank / kPerNode, rank);
    f(rank, SharedIndexRanks(world, *node, [&] { return signal(rank); }));
  });
}

class SharedIndexTest : public testing::Test {
 protected:
  /// Reads the index on all ranks, each with its own cache folder, and checks its values.
  void read_on_all(const std::function<Path(int rank)>& folder_of) {
    on_two_nodes([&](int rank, const SharedIndexRanks& ranks) {
      const IndexArrays arrays = cached_index(
          folder_of(rank), "test", "an index",
          [&](const IndexBuildOptions& how) {
            ++builds_;
            copies_ = how.copies;
            return truth_;
          },
          ranks, Log(1));
      from_file_ += arrays.is_mapped();
      for (std::size_t i = 0; i < truth_.size(); ++i) EXPECT_THAT(truth_[i], testing::ElementsAreArray(arrays[i]));
    });
  }

  const Arrays truth_{{1, 2, 3, 4}, std::vector<u32>(100'000, 7)};
  test::ScratchFolder scratch_;
  std::atomic<int> builds_ = 0, from_file_ = 0, copies_ = 0;
};

TEST_F(SharedIndexTest, OneRankBuildsForAllRanksWithSharedFolder) {
  read_on_all([&](int) { return scratch_ / "cache"; });
  EXPECT_EQ(builds_, 1);
  EXPECT_EQ(copies_, 1);
  EXPECT_EQ(from_file_, kRanks);
}

TEST_F(SharedIndexTest, OneRankPerNodeBuildsWhenFoldersAreLocal) {
  read_on_all([&](int rank) { return scratch_ / str("disk_of_node_", rank / kPerNode); });
  EXPECT_EQ(builds_, 2);
  EXPECT_EQ(from_file_, kRanks);
}

TEST_F(SharedIndexTest, EachRankBuildsInMemoryWhenFolderIsUnwritable) {
  write_file_atomic(scratch_ / "file", "a file where the folder should be");
  read_on_all([&](int rank) { return scratch_ / (rank / kPerNode == 1 ? "file" : "cache"); });
  EXPECT_EQ(builds_, 3);  // one on node 0, both on node 1
  EXPECT_EQ(copies_, kPerNode);
  EXPECT_EQ(from_file_, kPerNode);
}

TEST_F(SharedIndexTest, RepairsDamagedFileForAllRanks) {
  const auto folder = [&](int) { return scratch_ / "cache"; };
  read_on_all(folder);
  const Path file = std::filesystem::directory_iterator(scratch_ / "cache")->path();
  const std::string good = read_text_file(file);
  std::string bad = good;
  bad[bad.size() / 2] ^= 1;
  write_file_atomic(file, bad);
  read_on_all(folder);
  EXPECT_EQ(builds_, 2);
  EXPECT_EQ(read_text_file(file), good);
}

/// The first rank of a node detects the damage but cannot repair it; then no rank may use the file.
TEST_F(SharedIndexTest, NoRankReadsDamagedFileWhenDiskIsFull) {
  const auto folder = [&](int) { return scratch_ / "cache"; };
  read_on_all(folder);
  const Path file = std::filesystem::directory_iterator(scratch_ / "cache")->path();
  std::string bad = read_text_file(file);
  bad[bad.size() / 2] ^= 1;
  write_file_atomic(file, bad);
  from_file_ = 0;
  struct rlimit before {};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const struct rlimit full { 1000, before.rlim_max };
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &full), 0);
  testing::internal::CaptureStderr();
  read_on_all(folder);
  const std::string warnings = testing::internal::GetCapturedStderr();
  ::setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  EXPECT_THAT(warnings, HasSubstr("cannot be cached"));
  EXPECT_EQ(from_file_, 0);
  // no temporary file is left
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(scratch_ / "cache"), {}), 1);
}

/// Building may take minutes, in which the user can fix the folder.
TEST_F(SharedIndexTest, WarnsAboutUnwritableFolderBeforeBuilding) {
  write_file_atomic(scratch_ / "file", "");
  std::string warnings;
  testing::internal::CaptureStderr();
  const auto build = [&](const IndexBuildOptions&) {
    warnings = testing::internal::GetCapturedStderr();
    return std::vector<std::vector<u32>>{{1, 2}};
  };
  const IndexArrays arrays =
      cached_index(scratch_ / "file" / "cache", "kind", "description", build, SingleIndexRank(), Log());
  EXPECT_THAT(warnings, HasSubstr("cannot be cached"));
  EXPECT_EQ(arrays[0].size(), 2u);
}

TEST_F(SharedIndexTest, TwoConcurrentRunsCanReadSameIndex) {
  const auto folder = [&](int) { return scratch_ / "cache"; };
  std::thread other([&] { read_on_all(folder); });
  read_on_all(folder);
  other.join();
  EXPECT_LE(builds_, 2);
  EXPECT_EQ(from_file_, 2 * kRanks);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(scratch_ / "cache"), {}), 1);
}

TEST_F(SharedIndexTest, AllRanksThrowErrorOfBuilder) {
  std::vector<std::string> errors(kRanks);
  on_two_nodes([&](int rank, const SharedIndexRanks& ranks) {
    errors[static_cast<std::size_t>(rank)] = test::input_error([&] {
      cached_index(
          scratch_ / "cache", "test", "an index",
          [](const IndexBuildOptions&) -> Arrays { fail(ExitCode::BadInput, "no such document"); }, ranks, Log(1));
    });
  });
  EXPECT_THAT(errors, Each("rank 0: no such document"));
}

TEST_F(SharedIndexTest, SignalOnAnyRankStopsBuild) {
  std::atomic<bool> is_building = false;
  std::vector<std::string> errors(kRanks);
  const auto begin = std::chrono::steady_clock::now();
  on_two_nodes(
      [&](int rank, const SharedIndexRanks& ranks) {
        errors[static_cast<std::size_t>(rank)] = test::error_of([&] {
          ranks.run(IndexRanks::RankScope::First, [&](const IndexBuildOptions& how) {
            is_building = true;
            while (std::chrono::steady_clock::now() < begin + 30s) how.throw_if_canceled("an index");
            return true;
          });
        });
      },
      [&](int rank) { return rank == kRanks - 1 && is_building ? 15 : 0; });
  EXPECT_THAT(errors, Each("rank 0: a signal stopped the run while it was building an index"));
  EXPECT_LT(std::chrono::steady_clock::now(), begin + 20s);
}

/// The build takes several times as long as ranks may wait for one another.
TEST_F(SharedIndexTest, LongBuildIsNotReportedAsHangAndWaitingRanksSleep) {
  std::atomic<bool> is_stopped = false;
  std::vector<std::string> hangs(kRanks);
  std::vector<double> cpu_seconds(kRanks);
  run_local_ranks(kRanks, [&](Communicator& ranks, int rank) {
    const auto r = static_cast<std::size_t>(rank);
    FlightRecorder recorder;
    recorder.set_limits({.distributed = 1});
    const auto world = make_metered(ranks.split(0, rank), std::make_shared<CommMeter>(), {recorder, "world", {}});
    const auto node = ranks.split(rank / kPerNode, rank);
    std::thread watchdog([&] {
      HangDetector detector;
      for (; !is_stopped && hangs[r].empty(); std::this_thread::sleep_for(50ms))
        hangs[r] = detector.check(recorder.snapshot(), 0.05).value_or("");
    });
    SharedIndexRanks(*world, *node).run(IndexRanks::RankScope::First, [](const IndexBuildOptions&) {
      std::this_thread::sleep_for(2s);
      return true;
    });
    struct timespec time {};
    ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    cpu_seconds[r] = static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
    is_stopped = true;
    watchdog.join();
  });
  EXPECT_THAT(hangs, Each(""));
  EXPECT_THAT(cpu_seconds, Each(testing::Lt(0.25)));
}

}  // namespace
}  // namespace mcpp::shared_index_test
