#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "comm/nccl.h"

namespace mcpp {
namespace {

constexpr LaneSelector::Kind kSum = LaneSelector::Kind::Sum, kGather = LaneSelector::Kind::Gather;

// Tensor parallelism waits for each operation. It must not use a second lane, which would cost memory.
TEST(LaneSelectorTest, UsesOneLaneWhenEachOperationIsAwaited) {
  LaneSelector selector;
  for (int i = 0; i < 10; ++i) {
    const LaneSelector::Kind kind = i % 2 == 0 ? kSum : kGather;
    const std::size_t lane = selector.begin(kind);
    EXPECT_EQ(lane, 0U);
    selector.end(lane, kind);
  }
}

// Backward pass with ZeRO 3: while the gradients of a unit are reduced, the weights of the next two units are gathered.
TEST(LaneSelectorTest, GathersDoNotWaitBehindReductions) {
  LaneSelector selector;
  std::size_t gather = selector.begin(kGather);
  std::vector<std::size_t> sums;
  for (int unit = 0; unit < 10; ++unit) {
    const std::size_t next_gather = selector.begin(kGather);  // gather of the next unit
    selector.end(gather, kGather);
    gather = next_gather;
    if (!sums.empty()) selector.end(sums.back(), kSum);
    sums.push_back(selector.begin(kSum));
    EXPECT_NE(sums.back(), gather) << unit;
  }
}

// After an update, ZeRO 1 gathers all buckets. The first bucket has to arrive first.
TEST(LaneSelectorTest, KeepsOrderWithinKind) {
  LaneSelector selector;
  for (int bucket = 0; bucket < 5; ++bucket) EXPECT_EQ(selector.begin(kGather), 0U);
  EXPECT_EQ(selector.begin(kSum), 1U);
  for (int bucket = 0; bucket < 5; ++bucket) selector.end(0, kGather);
  EXPECT_EQ(selector.begin(kSum), 1U) << "queued behind the other sum";
  EXPECT_EQ(selector.begin(kGather), 0U);
}

TEST(LaneSelectorTest, NeverMixesKindsInFlight) {
  LaneSelector selector;
  std::mt19937 random(1);
  std::vector<std::pair<std::size_t, LaneSelector::Kind>> in_flight;
  for (int i = 0; i < 10000; ++i) {
    if (random() % 2 == 0 && !in_flight.empty()) {
      const auto finished = in_flight.begin() + static_cast<std::ptrdiff_t>(random() % in_flight.size());
      selector.end(finished->first, finished->second);
      in_flight.erase(finished);
      continue;
    }
    const LaneSelector::Kind kind = random() % 2 == 0 ? kSum : kGather;
    const std::size_t lane = selector.begin(kind);
    ASSERT_LT(lane, LaneSelector::kLanes);
    for (const auto& [other, other_kind] : in_flight) ASSERT_EQ(other == lane, other_kind == kind);
    in_flight.emplace_back(lane, kind);
  }
}

}  // namespace
}  // namespace mcpp
