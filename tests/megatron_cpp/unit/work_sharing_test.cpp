#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <mutex>
#include <set>
#include <thread>

#include "comm/local.h"
#include "megatron_cpp/prepare/work_distribution.h"
#include "tests/support/errors.h"

namespace mcpp {
namespace {

TEST(WorkSharing, EveryPieceIsDoneOnce) {
  for (const i64 pieces : {0, 1, 2, 7, 40}) {
    std::mutex mutex;
    std::multiset<i64> done;
    std::set<int> workers;
    run_local_ranks(3, [&](Communicator& world, int rank) {
      WorkProgress last;
      std::set<std::string> told;
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
            for (const WorkUpdate& news : all.news) {
              EXPECT_EQ(news.text, str("piece ", news.piece, " of rank ", news.rank));
              told.insert(news.text);
            }
            ended.insert(all.ended.begin(), all.ended.end());
            EXPECT_LE(ended.size(), told.size());
          });
      EXPECT_EQ(last.pieces, pieces);
      EXPECT_EQ(last.amount, 10.0 * static_cast<double>(pieces));
      EXPECT_EQ(std::ssize(told), pieces) << "every rank is told of every piece";
      EXPECT_EQ(std::ssize(ended), pieces) << "and of its end";
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
              ++given_up;
              throw;
            }
          },
          [](const WorkProgress&) {});
    });
    EXPECT_EQ(error, "rank 1: piece 1 is bad") << rank;
  });
  EXPECT_EQ(given_up, 2);
}

/// The end of a piece, here one that waits until the rank has begun two more, keeps nobody from work.
TEST(WorkSharing, WorksOnWhileAPieceEnds) {
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

/// Here the end of the first piece waits for news of all others.
TEST(WorkSharing, AnEndMayWaitForNewsOfOthers) {
  run_local_ranks(3, [&](Communicator& world, int) {
    std::atomic<std::size_t> told = 0;
    distribute_work(
        world, 9,
        [&](i64 piece, const std::function<void(double)>&) -> ProcessedPiece {
          return {"", [&, piece](const std::stop_token&) {
                    while (piece == 0 && told < 9) std::this_thread::sleep_for(std::chrono::milliseconds(1));
                  }};
        },
        [&](const WorkProgress& all) { told += all.news.size(); });
    EXPECT_EQ(told, 9u);
  });
}

TEST(WorkSharing, AnErrorAtAnEndIsThatOfAll) {
  run_local_ranks(3, [&](Communicator& world, int rank) {
    const std::string error = test::input_error([&] {
      distribute_work(
          world, 9,
          [&](i64 piece, const std::function<void(double)>&) -> ProcessedPiece {
            return {"", [piece](const std::stop_token& stop) {
                      check_input(piece != 2, "the disk is full");
                      while (piece == 0 && !stop.stop_requested())  // for what will never be
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
