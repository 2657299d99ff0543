#include "megatron_cpp/resume/replica_peers.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

namespace mcpp::replica_peers_test {
namespace {

/// Returns the nodes of ranks on nodes with these numbers of ranks.
std::vector<int> nodes_of(const std::vector<int>& sizes) {
  std::vector<int> nodes;
  for (const int size : sizes) {
    const auto first = static_cast<int>(nodes.size());
    nodes.insert(nodes.end(), static_cast<std::size_t>(size), first);
  }
  return nodes;
}

TEST(ReplicaPeersTest, PairsRanksOfNeighboringNodes) {
  const std::vector<int> nodes = nodes_of({2, 2, 2});
  EXPECT_EQ(count_nodes(nodes), 3);
  EXPECT_EQ(replica_peers(nodes, 0, 1).holders, std::vector<int>({2}));
  EXPECT_EQ(replica_peers(nodes, 5, 1).holders, std::vector<int>({1}));
  EXPECT_EQ(replica_peers(nodes, 1, 1).sources, std::vector<int>({5}));
  EXPECT_EQ(replica_peers(nodes, 0, 2).holders, std::vector<int>({2, 4}));
  EXPECT_EQ(replica_peers(nodes, 0, 2).sources, std::vector<int>({2, 4}));
  EXPECT_TRUE(replica_peers(nodes_of({4}), 1, 0).holders.empty());
}

/// Every rank has a copy on `replicas` other nodes, and both sides agree on who keeps it.
TEST(ReplicaPeersTest, KeepsCopiesOnOtherNodesOfAnySize) {
  for (const std::vector<int>& sizes : {std::vector<int>{1, 1}, {8, 8}, {4, 1, 2}, {1, 4}, {3, 3, 3, 2, 5}}) {
    const std::vector<int> nodes = nodes_of(sizes);
    for (i64 replicas = 0; replicas < std::ssize(sizes); ++replicas) {
      std::set<std::pair<int, int>> held, kept;
      for (int rank = 0; rank < std::ssize(nodes); ++rank) {
        const ReplicaPeers peers = replica_peers(nodes, rank, replicas);
        std::set<int> used{nodes[static_cast<std::size_t>(rank)]};
        for (const int holder : peers.holders) {
          EXPECT_TRUE(used.insert(nodes[static_cast<std::size_t>(holder)]).second);
          held.insert({rank, holder});
        }
        EXPECT_EQ(std::ssize(peers.holders), replicas);
        for (const int source : peers.sources) kept.insert({source, rank});
      }
      EXPECT_EQ(held, kept);
    }
  }
}

/// A rank of thousands finds its peers without communication.
TEST(ReplicaPeersTest, ScalesToThousandsOfRanks) {
  const std::vector<int> nodes = nodes_of(std::vector<int>(512, 8));
  const ReplicaPeers peers = replica_peers(nodes, 4095, 2);
  EXPECT_EQ(peers.holders, std::vector<int>({7, 15}));
  EXPECT_EQ(peers.sources, std::vector<int>({4079, 4087}));
}

}  // namespace
}  // namespace mcpp::replica_peers_test
