#include "megatron_cpp/resume/replica_peers.h"

#include <algorithm>
#include <map>
#include <set>

#include "comm/object_collectives.h"

namespace mcpp {
namespace {

/// Returns the ranks of each node, in the order of the first ranks.
std::vector<std::vector<int>> ranks_by_node(const std::vector<int>& nodes) {
  std::map<int, std::vector<int>> ranks;
  for (std::size_t rank = 0; rank < nodes.size(); ++rank) ranks[nodes[rank]].push_back(static_cast<int>(rank));
  std::vector<std::vector<int>> result;
  for (auto& [node, of_node] : ranks) result.push_back(std::move(of_node));
  return result;
}

}  // namespace

std::vector<int> nodes_of_ranks(const CheckpointConfig& config, const Session& session) {
  Communicator& world = session.parallel.world;
  const auto size = static_cast<int>(config.local_ranks_per_node);
  if (size == 0) return nodes_of_ranks(world, *session.node);
  std::vector<int> nodes;
  for (int rank = 0; rank < world.size(); ++rank) nodes.push_back(rank / size * size);
  return nodes;
}

i64 count_nodes(const std::vector<int>& nodes) {
  return std::ssize(std::set<int>(nodes.begin(), nodes.end()));
}

ReplicaPeers replica_peers(const std::vector<int>& nodes, int rank, i64 replicas) {
  const std::vector<std::vector<int>> by_node = ranks_by_node(nodes);
  ReplicaPeers peers;
  for (std::size_t node = 0; node < by_node.size(); ++node) {
    for (std::size_t index = 0; index < by_node[node].size(); ++index) {
      const int source = by_node[node][index];
      for (i64 copy = 1; copy <= replicas; ++copy) {
        const std::vector<int>& next = by_node[(node + static_cast<std::size_t>(copy)) % by_node.size()];
        const int holder = next[index % next.size()];
        if (source == rank) peers.holders.push_back(holder);
        if (holder == rank) peers.sources.push_back(source);
      }
    }
  }
  std::ranges::sort(peers.sources);
  return peers;
}

}  // namespace mcpp
