#include "megatron_cpp/prepare/work_sharing.h"

#include <gtest/gtest.h>

#include <atomic>
#include <mutex>
#include <set>
#include <thread>

#include "comm/local.h"
#include "tests/support/errors.h"

namespace mcpp {
namespace {

TEST(WorkSharing, EveryPieceIsDoneOnce) {
  for (const i64 pieces : {0, 1, 2, 7, 40}) {
    std::mutex mutex;
    std::multiset<i64> done;
    std::set<int> workers;
    run_local_ranks(3, [&](Communicator& world, int rank) {
      WorkDone last;
      share_work(
          world, pieces,
          [&](i64 piece, const std::function<void(double)>& add) {
            std::this_thread::sleep_for(std::chrono::milliseconds(2));
            add(10);
            const std::lock_guard lock(mutex);
            done.insert(piece), workers.insert(rank);
          },
          [&](const WorkDone& all) { last = all; });
      EXPECT_EQ(last.pieces, pieces);
      EXPECT_EQ(last.amount, 10.0 * static_cast<double>(pieces));
    });
    EXPECT_EQ(done.size(), static_cast<std::size_t>(pieces));
    EXPECT_EQ(std::set(done.begin(), done.end()).size(), static_cast<std::size_t>(pieces));
    if (pieces >= 7) {
      EXPECT_EQ(workers.size(), 3u) << "each rank has its share";
    }
  }
}

/// Those that are at work are given up, so that nobody waits for the end of a long piece.
TEST(WorkSharing, AnErrorOfOneRankIsThatOfAll) {
  std::atomic<int> given_up = 0;
  run_local_ranks(3, [&](Communicator& world, int rank) {
    const std::string error = test::input_error([&] {
      share_work(
          world, 3,
          [&](i64 piece, const std::function<void(double)>& add) {
            if (piece == 1) fail(ExitCode::BadInput, "piece 1 is bad");
            try {
              while (true) {
                std::this_thread::sleep_for(std::chrono::milliseconds(1));
                add(1);
              }
            } catch (...) {
              ++given_up;
              throw;
            }
          },
          [](const WorkDone&) {});
    });
    EXPECT_EQ(error, "rank 1: piece 1 is bad") << rank;
  });
  EXPECT_EQ(given_up, 2);
}

}  // namespace
}  // namespace mcpp
