#include "parallel/ep/exchange_nodes.h"

#include <algorithm>

namespace mcpp {

ExchangeNodes::ExchangeNodes(std::span<const int> nodes) {
  std::vector<int> found;
  for (std::size_t rank = 0; rank < nodes.size(); ++rank) {
    const auto node = static_cast<std::size_t>(std::ranges::find(found, nodes[rank]) - found.begin());
    if (node == found.size()) found.push_back(nodes[rank]), members_.emplace_back();
    places_.push_back({static_cast<int>(node), static_cast<int>(members_[node].size())});
    members_[node].push_back(static_cast<int>(rank));
  }
}

ExchangeNodes ExchangeNodes::consecutive(int ranks, int node_ranks) {
  std::vector<int> nodes;
  for (int rank = 0; rank < ranks; ++rank) nodes.push_back(rank / node_ranks);
  return ExchangeNodes(nodes);
}

int ExchangeNodes::relay(int source, int node) const {
  if (node_of(source) == node) return source;
  const std::vector<int>& ranks = members(node);
  return ranks[static_cast<std::size_t>(index_of(source)) % ranks.size()];
}

std::vector<int> ExchangeNodes::sources(int relay) const {
  std::vector<int> result;
  for (int rank = 0; rank < ranks(); ++rank)
    if (this->relay(rank, node_of(relay)) == relay) result.push_back(rank);
  return result;
}

}  // namespace mcpp
