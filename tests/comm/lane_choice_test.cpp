#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "comm/nccl.h"

namespace mcpp {
namespace {

constexpr LaneSelector::Kind kSum = LaneSelector::Kind::Sum, kGather = LaneSelector::Kind::Gather;

// Tensor parallelism waits for each operation. It must not use a second lane, which would cost memory.
TEST(LaneSelectorTest, UsesOneLaneWhenEachOperationIsAwaited) {
  LaneSelector choice;
  for (int i = 0; i < 10; ++i) {
    const LaneSelector::Kind kind = i % 2 == 0 ? kSum : kGather;
    const std::size_t lane = choice.begin(kind);
    EXPECT_EQ(lane, 0U);
    choice.end(lane, kind);
  }
}

// Backward pass with ZeRO 3: while the gradients of a unit are reduced, the weights of the next two units are gathered.
TEST(LaneSelectorTest, GathersDoNotWaitBehindReductions) {
  LaneSelector choice;
  std::size_t gather = choice.begin(kGather);
  std::vector<std::size_t> sums;
  for (int unit = 0; unit < 10; ++unit) {
    const std::size_t ahead = choice.begin(kGather);  // gather of the next unit
    choice.end(gather, kGather);
    gather = ahead;
    if (!sums.empty()) choice.end(sums.back(), kSum);
    sums.push_back(choice.begin(kSum));
    EXPECT_NE(sums.back(), gather) << unit;
  }
}

// After an update, ZeRO 1 gathers all buckets. The first bucket has to arrive first.
TEST(LaneSelectorTest, KeepsOrderWithinKind) {
  LaneSelector choice;
  for (int bucket = 0; bucket < 5; ++bucket) EXPECT_EQ(choice.begin(kGather), 0U);
  EXPECT_EQ(choice.begin(kSum), 1U);
  for (int bucket = 0; bucket < 5; ++bucket) choice.end(0, kGather);
  EXPECT_EQ(choice.begin(kSum), 1U) << "behind the other";
  EXPECT_EQ(choice.begin(kGather), 0U);
}

TEST(LaneSelectorTest, NeverMixesKindsInFlight) {
  LaneSelector choice;
  std::mt19937 random(1);
  std::vector<std::pair<std::size_t, LaneSelector::Kind>> in_flight;
  for (int i = 0; i < 10000; ++i) {
    if (random() % 2 == 0 && !in_flight.empty()) {
      const auto ended = in_flight.begin() + static_cast<std::ptrdiff_t>(random() % in_flight.size());
      choice.end(ended->first, ended->second);
      in_flight.erase(ended);
      continue;
    }
    const LaneSelector::Kind kind = random() % 2 == 0 ? kSum : kGather;
    const std::size_t lane = choice.begin(kind);
    ASSERT_LT(lane, LaneSelector::kLanes);
    for (const auto& [other, other_kind] : in_flight) ASSERT_EQ(other == lane, other_kind == kind);
    in_flight.emplace_back(lane, kind);
  }
}

}  // namespace
}  // namespace mcpp
