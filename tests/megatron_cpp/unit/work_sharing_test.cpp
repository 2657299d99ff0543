#include "megatron_cpp/prepare/work_sharing.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
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
      std::set<std::string> told;
      share_work(
          world, pieces,
          [&](i64 piece, const std::function<void(double)>& add) -> EndOfPiece {
            std::this_thread::sleep_for(std::chrono::milliseconds(2));
            add(10);
            const std::lock_guard lock(mutex);
            done.insert(piece), workers.insert(rank);
            return [rank, piece] { return str("piece ", piece, " of rank ", rank); };
          },
          [&](const WorkDone& all) {
            last = all;
            for (const DonePiece& news : all.news) {
              EXPECT_EQ(news.text, str("piece ", news.piece, " of rank ", news.rank));
              told.insert(news.text);
            }
          });
      EXPECT_EQ(last.pieces, pieces);
      EXPECT_EQ(last.amount, 10.0 * static_cast<double>(pieces));
      EXPECT_EQ(std::ssize(told), pieces) << "every rank is told of every piece";
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
          [&](i64 piece, const std::function<void(double)>& add) -> EndOfPiece {
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

/// The end of a piece, here one that waits for the next piece, keeps nobody from that.
TEST(WorkSharing, WorksOnWhileAPieceEnds) {
  run_local_ranks(2, [&](Communicator& world, int) {
    std::promise<void> second;
    std::atomic<int> begun = 0;
    WorkDone last;
    share_work(
        world, 6,
        [&](i64, const std::function<void(double)>&) -> EndOfPiece {
          const int number = begun++;
          if (number == 1) second.set_value();
          return [&, number] {
            if (number == 0 && second.get_future().wait_for(std::chrono::seconds(60)) != std::future_status::ready)
              fail(ExitCode::BadInput, "nothing was begun");
            return std::string();
          };
        },
        [&](const WorkDone& all) { last = all; });
    EXPECT_EQ(last.pieces, 6);
  });
}

TEST(WorkSharing, AnErrorAtAnEndIsThatOfAll) {
  run_local_ranks(3, [&](Communicator& world, int rank) {
    const std::string error = test::input_error([&] {
      share_work(
          world, 9,
          [&](i64 piece, const std::function<void(double)>&) -> EndOfPiece {
            return [piece] {
              check_input(piece != 2, "the disk is full");
              return std::string();
            };
          },
          [](const WorkDone&) {});
    });
    EXPECT_EQ(error, "rank 2: the disk is full") << rank;
  });
}

}  // namespace
}  // namespace mcpp
