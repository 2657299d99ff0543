#include "parallel/state.h"

#include <gtest/gtest.h>

#include <set>

#include "comm/local.h"

namespace mcpp {
namespace {

/// Returns the world ranks of a group, determined by communication.
std::vector<int> members(Communicator& group, int world_rank, Device& device) {
  Tensor own = Tensor::empty({1}, DType::I32, device), all = Tensor::empty({group.size()}, DType::I32, device);
  own.data<i32>()[0] = world_rank;
  group.all_gather(own, all).wait();
  return {all.data<i32>(), all.data<i32>() + group.size()};
}

TEST(ParallelStateTest, GroupsConnectRanksOfTopology) {
  run_local_ranks(16, [](Communicator& world, int rank) {
    CpuDevice device;
    const ParallelState state = make_parallel_state(world, {.tp = 2, .cp = 2, .pp = 2, .ep = 4, .etp = 1});
    const Grid& dense = state.topology.dense();
    EXPECT_EQ(dense.rank(state.coordinates), rank);
    const auto expect = [&](Communicator& group, const std::vector<int>& ranks) {
      EXPECT_EQ(members(group, rank, device), ranks);
    };
    expect(*state.tp, dense.group(rank, {Axis::Tp}));
    expect(*state.dp, dense.group(rank, {Axis::Dp}));
    expect(*state.dp_cp, dense.group(rank, {Axis::Cp, Axis::Dp}));
    expect(state.gradient_groups(GridKind::Dense).shard, dense.group(rank, {Axis::Cp, Axis::Dp}));
    EXPECT_EQ(state.output_rank, 1);
    EXPECT_EQ(state.final_norm_rank, 1);
    expect(*state.pp, dense.group(rank, {Axis::Pp}));
    expect(*state.tp_pp, dense.group(rank, {Axis::Tp, Axis::Pp}));
    ASSERT_NE(state.embedding, nullptr);
    expect(*state.embedding, state.topology.embedding_group(rank, 1));
  });
}

/// Nodes are the hosts of the ranks, or a number of consecutive ranks.
TEST(ParallelStateTest, SplitsExpertExchangeByNode) {
  run_local_ranks(8, [](Communicator& world, int rank) {
    CpuDevice device;
    const std::vector<int> hosts{0, 0, 0, 3, 3, 3, 3, 3};
    const auto node_members = [&](i64 node_ranks) {
      const ParallelState state = make_parallel_state(
          world, {.ep = 4, .dispatcher = TokenDispatcherType::Hierarchical, .dispatch_node_ranks = node_ranks},
          /*has_experts=*/true, nullptr, nullptr, hosts);
      EXPECT_EQ(state.exchange_nodes->ranks(), 4);
      return members(*state.expert_node, rank, device);
    };
    EXPECT_EQ(node_members(0), rank < 3    ? (std::vector<int>{0, 1, 2})
                               : rank == 3 ? (std::vector<int>{3})
                                           : (std::vector<int>{4, 5, 6, 7}));
    EXPECT_EQ(node_members(2), (std::vector<int>{rank / 2 * 2, rank / 2 * 2 + 1}));
    EXPECT_EQ(make_parallel_state(world, {.ep = 4}, /*has_experts=*/true).expert_node, nullptr);
  });
}

/// The word embeddings are on the first rank and on that of multi-token prediction, which is not the output's here.
TEST(ParallelStateTest, EmbeddingGroupIncludesRankOfMultiTokenPrediction) {
  run_local_ranks(4, [](Communicator& world, int rank) {
    CpuDevice device;
    const ParallelState state = make_parallel_state(world, {.pp = 4, .stages = "Et|t|m|L"});
    EXPECT_EQ(state.output_rank, 3);
    EXPECT_EQ(state.final_norm_rank, 2);
    EXPECT_EQ(state.has_output_part(), rank >= 2);
    ASSERT_EQ(state.embedding != nullptr, rank == 0 || rank == 2);
    if (state.embedding) {
      EXPECT_EQ(members(*state.embedding, rank, device), (std::vector<int>{0, 2}));
    }
  });
}

/// The flight recorder must name the ranks that are really in the group.
TEST(ParallelStateTest, BuildsAndNamesShardAndReplicaGroups) {
  run_local_ranks(8, [](Communicator& world, int rank) {
    CpuDevice device;
    FlightRecorder recorder;
    const ParallelState state = make_parallel_state(world, {.tp = 2, .instances = 2}, /*has_experts=*/false, &recorder);
    const int tp = rank % 2, dp = rank / 2;
    const auto expect = [&](Communicator& group, const std::vector<int>& ranks) {
      EXPECT_EQ(members(group, rank, device), ranks);
      EXPECT_EQ(recorder.last_done(1).at(0).group->ranks, ranks);
    };
    expect(*state.tp, {rank - tp, rank - tp + 1});
    expect(*state.dp, {tp, 2 + tp, 4 + tp, 6 + tp});
    EXPECT_EQ(state.dp, state.dp_cp) << "the same ranks need one group";
    expect(*state.dp_shard, {dp / 2 * 4 + tp, dp / 2 * 4 + 2 + tp});
    expect(*state.dp_replicate, {dp % 2 * 2 + tp, dp % 2 * 2 + 4 + tp});
    const int first = dp / 2 * 4;
    expect(*state.tp_dp_shard, {first, first + 1, first + 2, first + 3});
    expect(*state.pp, {rank});
    expect(*state.tp_pp, {rank - tp, rank - tp + 1});
    expect(*state.embedding, {rank});
  });
}

/// Every group has a meter, so that no group is missed when they are connected.
TEST(ParallelStateTest, NamesEveryGroupOnce) {
  run_local_ranks(16, [](Communicator& world, int) {
    for (const Layout& layout : {Layout{}, Layout{.node_ranks = 2}, Layout{.tp = 2, .pp = 4},
                                 Layout{.tp = 2, .cp = 2, .ep = 4, .etp = 1}, Layout{.ep = 2, .etp = 2}}) {
      const ParallelState state = make_parallel_state(world, layout, /*has_experts=*/layout.ep > 1);
      std::set<std::string> metered{"world"}, named;
      for (const auto& [name, meter] : state.meters) metered.insert(name);
      if (!state.embedding) metered.erase("embedding");
      std::set<Communicator*> groups;
      for (const auto& [name, group, use] : state.groups()) {
        EXPECT_TRUE(named.emplace(name).second) << name;
        EXPECT_TRUE(groups.insert(group).second) << name;
      }
      EXPECT_EQ(named, metered);
    }
  });
}

TEST(ParallelStateTest, BuildsSecondaryShardGroupsOfNeighbors) {
  run_local_ranks(16, [](Communicator& world, int rank) {
    CpuDevice device;
    const ParallelState state = make_parallel_state(world, {.tp = 2, .instances = 2, .node_ranks = 2});
    const int first = rank / 8 * 8 + rank % 2,
              index_in_shard = rank % 8 / 2;  // of the shard group: first, first + 2, ...
    const DataParallelGroups groups = state.gradient_groups(GridKind::Dense);
    EXPECT_EQ(members(groups.shard, rank, device), (std::vector{first, first + 2, first + 4, first + 6}));
    const int node = first + index_in_shard / 2 * 4, same = first + index_in_shard % 2 * 2;
    EXPECT_EQ(members(*groups.intra_node, rank, device), (std::vector{node, node + 2}));
    EXPECT_EQ(members(*groups.inter_node, rank, device), (std::vector{same, same + 4}));
  });
  run_local_ranks(6, [](Communicator& world, int) {
    EXPECT_EQ(make_parallel_state(world, {}).gradient_groups(GridKind::Dense).intra_node, nullptr);
    EXPECT_THROW(make_parallel_state(world, {.node_ranks = 4}), Error);
  });
}

TEST(ParallelStateTest, OnlyFirstAndLastStageHoldEmbeddings) {
  run_local_ranks(4, [](Communicator& world, int rank) {
    const ParallelState state = make_parallel_state(world, {.pp = 4});
    EXPECT_EQ(state.embedding != nullptr, rank == 0 || rank == 3);
    if (state.embedding) {
      EXPECT_EQ(state.embedding->size(), 2);
    }
    const ParallelState v_shaped = make_parallel_state(world, {.pp = 4, .schedule = ScheduleKind::ZbV, .chunks = 2});
    EXPECT_EQ(v_shaped.embedding != nullptr, rank == 0);
  });
}

}  // namespace
}  // namespace mcpp
