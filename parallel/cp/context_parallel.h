// Context parallelism: ranks see the same samples, and each has some of the positions of every one. All layers but
// attention work on these as on samples of their own; attention brings queries, keys and values of other positions
// together. docs/context_parallelism.md draws who holds what, and says when to take which way.
#pragma once
#include <memory>

#include "parallel/cp/comm_type.h"
#include "parallel/cp/core_attention.h"
#include "parallel/cp/head_exchange.h"
#include "parallel/cp/sequence_cut.h"

namespace mcpp {

/// What a rank does of it. As made: nothing, it has all positions.
struct ContextParallel {
  CpCommType comm_type = CpCommType::P2p;
  SequenceCut cut;
  i64 rank = 0;                   ///< of cut.ranks()
  Communicator* heads = nullptr;  ///< those that exchange heads; null = nobody
  Communicator* ring = nullptr;   ///< those whose keys meet; null = nobody

  i64 size() const { return cut.ranks(); }
  i64 member() const { return rank / cut.heads; }  ///< of the ring

  std::unique_ptr<CoreAttention> make_core_attention() const;
  /// For `query_groups` on this rank; null where no heads are exchanged.
  std::unique_ptr<HeadExchange> make_head_exchange(i64 query_groups) const;
};

}  // namespace mcpp
