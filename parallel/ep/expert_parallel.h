// Expert parallelism (Shazeer et al. 2017; Lepikhin et al., "GShard", 2021): each rank has some of the experts of a
// layer, and tokens are sent to the experts chosen for them. The same ranks as in the dense layers form a separate
// grid (Liu et al., "MoE Parallel Folding", 2025): ep groups of expert_tensor_parallel_size consecutive ranks, each of
// which has a slice of the width of its experts.
#pragma once
#include <memory>

#include "comm/communicator.h"
#include "parallel/ep/exchange_nodes.h"
#include "parallel/layout.h"
#include "tensor/ops/routing_tables.h"

namespace mcpp {

/// Number of exchanged tokens that reach the experts of a rank: a multiple of an even share, or all tokens that can.
enum class ExpertLoad : u8 { Even, Max };

/// Choices of experts that are assumed on the meta device, where they have no values.
struct AssumedChoices {
  ExpertLoad load = ExpertLoad::Even;
  double imbalance = 1;  ///< ExpertLoad::Even: ratio of the tokens of this rank's experts to an even share
  i64 max_rows = 0;      ///< largest number of rows of an expert, from all ranks of the exchange; 0 = no limit
  i64 num_groups = 0, group_topk = 0;  ///< groups of experts, and how many of them a token may use; 0 = no groups
};

/// Expert-parallel configuration of a rank. By default it has all experts.
struct ExpertParallel {
  TokenDispatcherType dispatcher = TokenDispatcherType::AllToAll;
  int ep = 1, ep_rank = 0;  ///< number of parts of the experts, and this rank's part
  int tp = 1, tp_rank = 0;  ///< number of slices of each expert's width, and this rank's slice
  /// The ep * tp ranks that exchange tokens; ranks with the same experts are consecutive. Null = this rank only.
  Communicator* exchange = nullptr;
  /// Hierarchical dispatch: nodes of the ranks of the exchange (null = all on one node), and the ranks of the exchange
  /// on this rank's node.
  std::shared_ptr<const ExchangeNodes> nodes = nullptr;
  Communicator* node_exchange = nullptr;
  /// Ranks with tokens of the same samples: tensor- and context-parallel ranks. Null = this rank only.
  Communicator* sample = nullptr;
  AssumedChoices assumed_choices = {};  ///< used on the meta device only

  i64 exchange_ranks() const { return exchange ? exchange->size() : 1; }
  /// Returns this rank's part of `num_experts` experts.
  ExpertRange local_experts(i64 num_experts) const { return {num_experts / ep * ep_rank, num_experts / ep}; }
};

}  // namespace mcpp
