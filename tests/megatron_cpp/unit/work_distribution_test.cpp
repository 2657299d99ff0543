#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <mutex>
#include <set>
#include <thread>

#include "comm/local.h"
#include "megatron_cpp/prepare/distributed_preprocess.h"
#include "tests/support/errors.h"

namespace mcpp {
namespace {

TEST(WorkDistributionTest, ProcessesEveryPieceOnce) {
  for (const i64 pieces : {0, 1, 2, 7, 40}) {
    std::mutex mutex;
    std::multiset<i64> done;
    std::set<int> workers;
    run_local_ranks(3, [&](Communicator& world, int rank) {
      WorkProgress last;
      std::set<std::string> updates;
      std::set<i64> ended;
      distribute_work(
          world, pieces,
          [&](i64 piece, const std::function<void(double)>& add) -> ProcessedPiece {
            std::this_thread::sleep_for(std::chrono::milliseconds(2));
            add(10);
            const std::lock_guard lock(mutex);
            done.insert(piece), workers.insert(rank);
            return {str("piece ", piece, " of rank ", rank), [](const std::stop_token&) {}};
          },
          [&](const WorkProgress& all) {
            last = all;
            for (const WorkUpdate& update : all.updates) {
              EXPECT_EQ(update.text, str("piece ", update.piece, " of rank ", update.rank));
              updates.insert(update.text);
            }
            ended.insert(all.ended.begin(), all.ended.end());
            EXPECT_LE(ended.size(), updates.size());
          });
      EXPECT_EQ(last.pieces, pieces);
      EXPECT_EQ(last.amount, 10.0 * static_cast<double>(pieces));
      EXPECT_EQ(std::ssize(updates), pieces) << "every rank receives updates about every piece";
      EXPECT_EQ(std::ssize(ended), pieces) << "and of its end";
    });
    EXPECT_EQ(done.size(), static_cast<std::size_t>(pieces));
    EXPECT_EQ(std::set(done.begin(), done.end()).size(), static_cast<std::size_t>(pieces));
    if (pieces >= 7) {
      EXPECT_EQ(workers.size(), 3u) << "each rank processes some pieces";
    }
  }
}

/// Pieces in progress are aborted, so that no rank waits for the end of a long piece.
TEST(WorkDistributionTest, AllRanksFailWithErrorOfOne) {
  std::atomic<int> aborted = 0;
  run_local_ranks(3, [&](Communicator& world, int rank) {
    const std::string error = test::input_error([&] {
      distribute_work(
          world, 3,
          [&](i64 piece, const std::function<void(double)>& add) -> ProcessedPiece {
            if (piece == 1) fail(ExitCode::BadInput, "piece 1 is bad");
            try {
              while (true) {
                std::this_thread::sleep_for(std::chrono::milliseconds(1));
                add(1);
              }
            } catch (...) {
              ++aborted;
              throw;
            }
          },
          [](const WorkProgress&) {});
    });
    EXPECT_EQ(error, "rank 1: piece 1 is bad") << rank;
  });
  EXPECT_EQ(aborted, 2);
}

/// The completion of a piece, which here waits until the rank has started two more, does not block further work.
TEST(WorkDistributionTest, ContinuesWhilePieceCompletes) {
  run_local_ranks(2, [&](Communicator& world, int) {
    std::promise<void> third;
    std::atomic<int> begun = 0;
    WorkProgress last;
    distribute_work(
        world, 10,
        [&](i64, const std::function<void(double)>&) -> ProcessedPiece {
          const int number = begun++;
          if (number == 2) third.set_value();
          return {
              "", [&, number](const std::stop_token&) {
                if (number == 0 && third.get_future().wait_for(std::chrono::seconds(60)) != std::future_status::ready)
                  fail(ExitCode::BadInput, "nothing was begun");
              }};
        },
        [&](const WorkProgress& all) { last = all; });
    EXPECT_EQ(last.pieces, 10);
  });
}

/// The completion of the first piece waits for updates about all others.
TEST(WorkDistributionTest, CompletionMayWaitForUpdatesOfOtherPieces) {
  run_local_ranks(3, [&](Communicator& world, int) {
    std::atomic<std::size_t> updates = 0;
    distribute_work(
        world, 9,
        [&](i64 piece, const std::function<void(double)>&) -> ProcessedPiece {
          return {"", [&, piece](const std::stop_token&) {
                    while (piece == 0 && updates < 9) std::this_thread::sleep_for(std::chrono::milliseconds(1));
                  }};
        },
        [&](const WorkProgress& all) { updates += all.updates.size(); });
    EXPECT_EQ(updates, 9u);
  });
}

TEST(WorkDistributionTest, AllRanksFailWithErrorOfCompletion) {
  run_local_ranks(3, [&](Communicator& world, int rank) {
    const std::string error = test::input_error([&] {
      distribute_work(
          world, 9,
          [&](i64 piece, const std::function<void(double)>&) -> ProcessedPiece {
            return {"", [piece](const std::stop_token& stop) {
                      check_input(piece != 2, "the disk is full");
                      while (piece == 0 && !stop.stop_requested())  // for a condition that never becomes true
                        std::this_thread::sleep_for(std::chrono::milliseconds(1));
                    }};
          },
          [](const WorkProgress&) {});
    });
    EXPECT_EQ(error, "rank 2: the disk is full") << rank;
  });
}

}  // namespace
}  // namespace mcpp
