#include "parallel/topology.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "base/check.h"

namespace mcpp {
namespace {

using testing::ElementsAre;

std::set<std::vector<int>> all_groups(const Grid& grid, Axes axes) {
  std::set<std::vector<int>> groups;
  for (int rank = 0; rank < grid.ranks(); ++rank) groups.insert(grid.group(rank, axes));
  return groups;
}

// Example from the documentation of Megatron-LM's parallel_state: 16 GPUs, tensor parallel 2, pipeline parallel 4.
TEST(TopologyTest, GroupsMatchMegatronExample) {
  const Topology t(16, {.tp = 2, .pp = 4});
  EXPECT_EQ(t.dp(), 2);
  using Groups = std::set<std::vector<int>>;
  EXPECT_EQ(all_groups(t.dense(), {Axis::Dp}),
            (Groups{{0, 2}, {1, 3}, {4, 6}, {5, 7}, {8, 10}, {9, 11}, {12, 14}, {13, 15}}));
  EXPECT_EQ(all_groups(t.dense(), {Axis::Tp}),
            (Groups{{0, 1}, {2, 3}, {4, 5}, {6, 7}, {8, 9}, {10, 11}, {12, 13}, {14, 15}}));
  EXPECT_EQ(all_groups(t.dense(), {Axis::Pp}), (Groups{{0, 4, 8, 12}, {1, 5, 9, 13}, {2, 6, 10, 14}, {3, 7, 11, 15}}));
  EXPECT_EQ(all_groups(t.dense(), {Axis::Tp, Axis::Pp}),
            (Groups{{0, 1, 4, 5, 8, 9, 12, 13}, {2, 3, 6, 7, 10, 11, 14, 15}}));
  EXPECT_THAT(t.embedding_group(5, 3), ElementsAre(1, 13));
  EXPECT_THAT(t.embedding_group(5, 0), ElementsAre(1));
}

TEST(TopologyTest, ContextParallelIsBetweenTensorAndData) {
  const Topology t(16, {.tp = 2, .cp = 2});
  EXPECT_THAT(t.dense().group(5, {Axis::Cp}), ElementsAre(5, 7));
  EXPECT_THAT(t.dense().group(5, {Axis::Dp}), ElementsAre(1, 5, 9, 13));
  EXPECT_THAT(t.dense().group(5, {Axis::Dp, Axis::Cp}), ElementsAre(1, 3, 5, 7, 9, 11, 13, 15));
}

TEST(TopologyTest, ExpertsHaveTheirOwnGrid) {
  const Topology t(16, {.tp = 2, .pp = 2, .ep = 4, .etp = 1});
  EXPECT_EQ(t.expert().sizes(), (AxisValues{.tp = 1, .ep = 4, .dp = 2, .pp = 2}));
  EXPECT_THAT(t.expert().group(6, {Axis::Ep}), ElementsAre(4, 5, 6, 7));
  EXPECT_THAT(t.expert().group(6, {Axis::Dp}), ElementsAre(2, 6));
  for (int rank = 0; rank < 16; ++rank)
    EXPECT_EQ(t.expert().group(rank, {Axis::Pp}), t.dense().group(rank, {Axis::Pp}));
}

TEST(GridTest, CoordinatesAndGroupsAreConsistent) {
  const Grid grid({.tp = 2, .cp = 3, .ep = 2, .dp = 2, .pp = 2});
  ASSERT_EQ(grid.ranks(), 48);
  for (const Axes axes : {Axes{}, Axes{Axis::Tp}, Axes{Axis::Cp, Axis::Pp}, Axes{Axis::Pp, Axis::Tp, Axis::Ep}}) {
    std::set<int> indices;
    for (int rank = 0; rank < grid.ranks(); ++rank) {
      EXPECT_EQ(grid.rank(grid.coordinates(rank)), rank);
      const std::vector<int> group = grid.group(rank, axes);
      EXPECT_TRUE(std::is_sorted(group.begin(), group.end()));
      EXPECT_EQ(group.at(grid.group_rank(rank, axes)), rank);
      for (const int member : group) EXPECT_EQ(grid.group_index(member, axes), grid.group_index(rank, axes));
      indices.insert(grid.group_index(rank, axes));
    }
    EXPECT_EQ(indices.size(), all_groups(grid, axes).size());
    EXPECT_EQ(*indices.rbegin(), static_cast<int>(indices.size()) - 1);
  }
}

TEST(TopologyTest, RejectsIndivisibleWorld) {
  EXPECT_THROW(Topology(6, {.tp = 4}), Error);
  EXPECT_THROW(Topology(6, {.tp = 0}), Error);
  EXPECT_THROW(Topology(6, {.ep = 4}), Error);
}

}  // namespace
}  // namespace mcpp
