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

TEST(WorkDistributionTest, ProcessesEveryChunkOnce) {
  for (const i64 chunks : {0, 1, 2, 7, 40}) {
    std::mutex mutex;
    std::multiset<i64> done;
    std::set<int> workers;
    run_local_ranks(3, [&](Communicator& world, int rank) {
      WorkProgress last;
      std::set<std::string> updates;
      std::set<i64> ended;
      distribute_work(
          world, chunks,
          [&](i64 chunk, const std::function<void(double)>& add) -> ProcessedChunk {
            std::this_thread::sleep_for(std::chrono::milliseconds(2));
            add(10);
            const std::lock_guard lock(mutex);
            done.insert(chunk), workers.insert(rank);
            return {str("chunk ", chunk, " of rank ", rank), [](const std::stop_token&) {}};
          },
          [&](const WorkProgress& all) {
            last = all;
            for (const WorkUpdate& update : all.updates) {
              EXPECT_EQ(update.text, str("chunk ", update.chunk, " of rank ", update.rank));
              updates.insert(update.text);
            }
            ended.insert(all.ended.begin(), all.ended.end());
            EXPECT_LE(ended.size(), updates.size());
          });
      EXPECT_EQ(last.chunks, chunks);
      EXPECT_EQ(last.amount, 10.0 * static_cast<double>(chunks));
      EXPECT_EQ(std::ssize(updates), chunks) << "every rank receives updates about every chunk";
      EXPECT_EQ(std::ssize(ended), chunks) << "and of its end";
    });
    EXPECT_EQ(done.size(), static_cast<std::size_t>(chunks));
    EXPECT_EQ(std::set(done.begin(), done.end()).size(), static_cast<std::size_t>(chunks));
    if (chunks >= 7) {
      EXPECT_EQ(workers.size(), 3u) << "each rank processes some chunks";
    }
  }
}

/// Chunks in progress are aborted, so that no rank waits for the end of a long chunk.
TEST(WorkDistributionTest, AllRanksFailWithErrorOfOne) {
  std::atomic<int> aborted = 0;
  run_local_ranks(3, [&](Communicator& world, int rank) {
    const std::string error = test::input_error([&] {
      distribute_work(
          world, 3,
          [&](i64 chunk, const std::function<void(double)>& add) -> ProcessedChunk {
            if (chunk == 1) fail(ExitCode::BadInput, "chunk 1 is bad");
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
    EXPECT_EQ(error, "rank 1: chunk 1 is bad") << rank;
  });
  EXPECT_EQ(aborted, 2);
}

/// The completion of a chunk, which here waits until the rank has started two more, does not block further work.
TEST(WorkDistributionTest, ContinuesWhileChunkCompletes) {
  run_local_ranks(2, [&](Communicator& world, int) {
    std::promise<void> third;
    std::atomic<int> begun = 0;
    WorkProgress last;
    distribute_work(
        world, 10,
        [&](i64, const std::function<void(double)>&) -> ProcessedChunk {
          const int number = begun++;
          if (number == 2) third.set_value();
          return {
              "", [&, number](const std::stop_token&) {
                if (number == 0 && third.get_future().wait_for(std::chrono::seconds(60)) != std::future_status::ready)
                  fail(ExitCode::BadInput, "nothing was begun");
              }};
        },
        [&](const WorkProgress& all) { last = all; });
    EXPECT_EQ(last.chunks, 10);
  });
}

/// The completion of the first chunk waits for updates about all others.
TEST(WorkDistributionTest, CompletionMayWaitForUpdatesOfOtherChunks) {
  run_local_ranks(3, [&](Communicator& world, int) {
    std::atomic<std::size_t> updates = 0;
    distribute_work(
        world, 9,
        [&](i64 chunk, const std::function<void(double)>&) -> ProcessedChunk {
          return {"", [&, chunk](const std::stop_token&) {
                    while (chunk == 0 && updates < 9) std::this_thread::sleep_for(std::chrono::milliseconds(1));
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
          [&](i64 chunk, const std::function<void(double)>&) -> ProcessedChunk {
            return {"", [chunk](const std::stop_token& stop) {
                      check_input(chunk != 2, "the disk is full");
                      while (chunk == 0 && !stop.stop_requested())  // for a condition that never becomes true
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
