// Context parallelism: ranks see the same samples, and each holds some of the positions of every sample. Attention
// combines queries, keys and values across ranks; all other layers treat their positions as a sequence of its own. See
// docs/context_parallelism.md for who holds what, and for which algorithm to choose.
#pragma once
#include <memory>

#include "parallel/cp/comm_type.h"
#include "parallel/cp/core_attention.h"
#include "parallel/cp/head_exchange.h"
#include "parallel/cp/sequence_partition.h"

namespace mcpp {

/// Context-parallel configuration of a rank. By default it holds all positions.
struct ContextParallel {
  CpCommType comm_type = CpCommType::P2p;
  SequencePartition partition;
  i64 rank = 0;                   ///< in [0, partition.ranks())
  Communicator* heads = nullptr;  ///< ranks that exchange heads; null = none
  Communicator* ring = nullptr;   ///< ranks that share keys and values; null = none

  i64 size() const { return partition.ranks(); }
  i64 member() const { return rank / partition.heads; }  ///< index in the ring

  std::unique_ptr<CoreAttention> make_core_attention() const;
  /// Creates the exchange for `query_groups` on this rank; returns null if heads are not exchanged.
  std::unique_ptr<HeadExchange> make_head_exchange(i64 query_groups) const;
};

}  // namespace mcpp
