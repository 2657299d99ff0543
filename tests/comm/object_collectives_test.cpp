// Collectives over strings and results.
#include "comm/object_collectives.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/check.h"
#include "base/strings.h"
#include "comm/local.h"

namespace mcpp {
namespace {

using testing::Each;
using testing::SizeIs;

/// Texts of different lengths: empty for rank 0, and longer than a message of a few words for later ranks.
std::string text_of(int rank) {
  return std::string(static_cast<std::size_t>(7 * rank), static_cast<char>('a' + rank));
}

TEST(GatherStringsTest, ReturnsTextsInRankOrderOnRank0) {
  for (const int ranks : {1, 2, 3, 4, 7, 8, 13}) {
    run_local_ranks(ranks, [&](Communicator& world, int rank) {
      const std::vector<std::string> texts = gather_strings(text_of(rank), world);
      ASSERT_THAT(texts, SizeIs(rank == 0 ? ranks : 0));
      if (rank != 0) return;
      for (int r = 0; r < ranks; ++r) EXPECT_EQ(texts[static_cast<std::size_t>(r)], text_of(r)) << "of " << ranks;
    });
  }
}

TEST(GatherStringsTest, KeepsZeroBytes) {
  run_local_ranks(2, [](Communicator& world, int rank) {
    const std::vector<std::string> texts = gather_strings(std::string("a\0b", 3), world);
    EXPECT_THAT(texts, SizeIs(rank == 0 ? 2 : 0));
    EXPECT_THAT(texts, Each(std::string("a\0b", 3)));
  });
}

TEST(IsIdenticalOnRanksTest, FindsOneDifferentRank) {
  for (const int ranks : {1, 2, 5}) {
    for (int different = 0; different < ranks; ++different) {
      run_local_ranks(ranks, [&](Communicator& world, int rank) {
        EXPECT_TRUE(is_identical_on_ranks("same", world));
        EXPECT_EQ(is_identical_on_ranks(rank == different ? "other" : "same", world), ranks == 1);
      });
    }
  }
}

TEST(RunOnAllRanksTest, ReturnsResultsOfAllRanks) {
  run_local_ranks(3, [](Communicator& world, int rank) {
    const std::vector<std::string> results = run_on_all_ranks(world, [&] { return text_of(rank); });
    for (int r = 0; r < 3; ++r) EXPECT_EQ(results[static_cast<std::size_t>(r)], text_of(r));
    EXPECT_THAT(run_on_all_ranks(world, [] { return std::string(); }), testing::ElementsAre("", "", ""));
  });
}

/// Returns the message of the error that `f` throws with ExitCode::BadInput.
template <class F>
std::string bad_input(const F& f) {
  try {
    f();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::BadInput);
    return error.what();
  }
  return "no error";
}

TEST(RunOnAllRanksTest, ThrowsErrorOfFirstFailedRankOnAllRanks) {
  run_local_ranks(4, [](Communicator& world, int rank) {
    const auto fail_late = [&] { check_input(rank < 2, "no file on ", rank); };
    EXPECT_EQ(bad_input([&] { run_on_all_ranks(world, fail_late); }), "rank 2: no file on 2");
    run_on_all_ranks(world, [] {});  // the ranks still agree
  });
}

TEST(BroadcastFromRank0Test, ReturnsResultOfRank0) {
  run_local_ranks(3, [](Communicator& world, int rank) {
    const auto only_rank0 = [&] {
      EXPECT_EQ(rank, 0);
      return std::string("text");
    };
    EXPECT_EQ(broadcast_from_rank0(world, only_rank0), "text");
    EXPECT_EQ(broadcast_from_rank0(world, [] { return std::string(); }), "");
    EXPECT_TRUE(broadcast_from_rank0(world, [] { return true; }));
  });
}

TEST(BroadcastFromRank0Test, ThrowsErrorOfRank0OnAllRanks) {
  run_local_ranks(3, [](Communicator& world, int) {
    EXPECT_EQ(bad_input([&] { run_on_rank0(world, [] { fail(ExitCode::BadInput, "no folder"); }); }),
              "rank 0: no folder");
  });
}

}  // namespace
}  // namespace mcpp
