// Placement of the ranks of tests that exchange tokens of experts.
#pragma once
#include <memory>
#include <utility>
#include <vector>

#include "comm/communicator.h"
#include "parallel/ep/expert_parallel.h"

namespace mcpp::test {

/// Expert-parallel configuration of a rank, with the group of the ranks on its node.
struct ExpertPlacement {
  /// Distributes the experts over all ranks of `world`, each over `tp` of them. `nodes` is the node of each rank; empty
  /// = all on one. Collective.
  ExpertPlacement(Communicator& world, TokenDispatcherType dispatcher, int tp = 1, std::vector<int> nodes = {}) {
    nodes.resize(static_cast<std::size_t>(world.size()));
    const int rank = world.rank();
    node = world.split(nodes[static_cast<std::size_t>(rank)], rank);
    parallel = {.dispatcher = dispatcher,
                .ep = world.size() / tp,
                .ep_rank = rank / tp,
                .tp = tp,
                .tp_rank = rank % tp,
                .exchange = &world,
                .nodes = std::make_shared<ExchangeNodes>(nodes),
                .node_exchange = node.get()};
  }

  std::unique_ptr<Communicator> node;
  ExpertParallel parallel;
};

}  // namespace mcpp::test
