// The node of a rank: its ranks and cores.
#pragma once
#include <vector>

namespace mcpp {

struct NodeInfo {
  std::vector<int> ranks{0};  ///< world ranks on this node, ascending
  int cores = 1;              ///< available to these ranks together; launchers often bind each rank separately

  /// Returns a unique id of the node.
  int node() const { return ranks.front(); }
  bool has_core_per_rank() const { return cores >= static_cast<int>(ranks.size()); }
};

/// Queries MPI. Collective over the world.
NodeInfo query_node_info();

}  // namespace mcpp
