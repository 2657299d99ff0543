// Placement of the copies of local checkpoints: which ranks keep the copies of a rank's part.
#pragma once
#include <vector>

#include "base/types.h"
#include "megatron_cpp/setup/initialize.h"

namespace mcpp {

/// Returns the node of each rank, identified by its first rank. Nodes are simulated if checkpoint.local_ranks_per_node
/// is set. Collective.
std::vector<int> nodes_of_ranks(const CheckpointConfig& config, const Session& session);

/// Returns the number of nodes in the result of nodes_of_ranks().
i64 count_nodes(const std::vector<int>& nodes);

/// Ranks that exchange copies with one rank.
struct ReplicaPeers {
  std::vector<int> holders;  ///< ranks that keep a copy of this rank's part, each on a different other node
  std::vector<int> sources;  ///< ranks of which this rank keeps a copy, ascending
};

/// Returns the peers of `rank`. Copies are on the next `replicas` nodes, in the order of their first ranks, so a loss
/// of any `replicas` nodes leaves a copy of each part. Nodes may have different numbers of ranks. `replicas` must be
/// less than the number of nodes. Not collective.
ReplicaPeers replica_peers(const std::vector<int>& nodes, int rank, i64 replicas);

}  // namespace mcpp
