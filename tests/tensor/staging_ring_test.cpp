#include "tensor/host/staging_ring.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <random>

namespace mcpp {
namespace {

TEST(StagingRingTest, WrapsAroundWhenOldestAreReturned) {
  StagingRing ring(100);
  EXPECT_EQ(ring.take(60), 0);
  EXPECT_EQ(ring.take(40), 60);
  EXPECT_EQ(ring.take(1), std::nullopt);
  ring.release_oldest();
  EXPECT_EQ(ring.take(61), std::nullopt);
  EXPECT_EQ(ring.take(50), 0);
  EXPECT_EQ(ring.take(10), 50);
  EXPECT_EQ(ring.take(1), std::nullopt);  // full, in two parts
  ring.release_oldest();
  EXPECT_EQ(ring.take(40), 60);
}

TEST(StagingRingTest, DoesNotSplitChunkAtEnd) {
  StagingRing ring(100);
  EXPECT_EQ(ring.take(30), 0);
  EXPECT_EQ(ring.take(50), 30);
  ring.release_oldest();
  EXPECT_EQ(ring.take(25), 0);             // the 20 at the end are too few
  EXPECT_EQ(ring.take(10), std::nullopt);  // and unusable until the ring continues at 0
  EXPECT_EQ(ring.take(5), 25);
}

TEST(StagingRingTest, RejectsMoreThanCapacity) {
  StagingRing ring(100);
  EXPECT_EQ(ring.take(101), std::nullopt);
  EXPECT_EQ(ring.take(100), 0);
}

/// Tracks the owner of every byte, for many sizes in any order.
TEST(StagingRingTest, ChunksInUseDoNotOverlap) {
  std::mt19937 random(7);
  for (const i64 capacity : {1, 7, 64, 1000}) {
    StagingRing ring(capacity);
    std::vector<bool> used(static_cast<std::size_t>(capacity));
    std::deque<std::pair<i64, i64>> chunks;
    const auto mark = [&](std::pair<i64, i64> chunk, bool value) {
      for (i64 i = chunk.first; i < chunk.second; ++i) {
        ASSERT_NE(used[static_cast<std::size_t>(i)], value);
        used[static_cast<std::size_t>(i)] = value;
      }
    };
    for (int step = 0; step < 20000; ++step) {
      const i64 bytes = 1 + static_cast<i64>(random() % static_cast<u32>(capacity));
      std::optional<i64> begin = ring.take(bytes);
      while (!begin) {
        ASSERT_FALSE(chunks.empty()) << "nothing is in use, yet " << bytes << " bytes of " << capacity
                                     << " are refused";
        mark(chunks.front(), false);
        chunks.pop_front();
        ring.release_oldest();
        begin = ring.take(bytes);
      }
      ASSERT_LE(*begin + bytes, capacity);
      chunks.emplace_back(*begin, *begin + bytes);
      mark(chunks.back(), true);
      if (random() % 3 == 0) {
        mark(chunks.front(), false);
        chunks.pop_front();
        ring.release_oldest();
      }
    }
  }
}

}  // namespace
}  // namespace mcpp
