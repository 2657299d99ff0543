// Context parallelism: ranks process the same samples, and each rank holds some of the positions of every sample.
// Attention combines queries, keys and values across ranks; all other layers treat the positions of a rank as a
// separate sequence. See docs/context_parallelism.md for the distribution of positions and the choice of the algorithm.
#pragma once
#include <memory>

#include "parallel/cp/head_exchange.h"
#include "parallel/cp/sequence_partition.h"
#include "parallel/layout.h"
#include "tensor/ops/ops.h"

namespace mcpp {

// Core attention, between the projections of an attention layer. It is an interface because the keys that this rank's
// queries need may be on several ranks.

/// Options of core attention; options.queries and options.keys are the positions of this rank's queries and keys.
struct CoreAttentionOptions : AttentionOptions {
  std::shared_ptr<const SamplePartition> partition;  ///< positions of all ranks; null without context parallelism
  /// Attention sinks (ops::attention_sink), used by ContextAttention: logits of this rank's heads before an exchange,
  /// [heads]; null = 0. They are read at each use, because ZeRO may move them between forward and backward.
  bool has_sinks = false;
  const Tensor* sinks = nullptr;
  /// If not null, receives the largest logits of this rank's heads before an exchange, over its queries
  /// (ops::max_attention_logits).
  Tensor* max_logits = nullptr;
};

/// Computes ops::attention() and, if requested, the largest logits.
void attend(const QkvHeads& x, const CoreAttentionOptions& options, AttentionResult& y);

/// Attention of this rank's queries. Forward and backward must be called with the same options.
class CoreAttention {
 public:
  virtual ~CoreAttention() = default;
  /// Returns the attention of the queries over all visible keys, including those on other ranks.
  virtual AttentionResult forward(const QkvHeads& x, const CoreAttentionOptions& options) = 0;
  /// Overwrites dx, shaped like x. `y` is the result of forward.
  virtual void backward(const Tensor& dout, const QkvHeads& x, const AttentionResult& y,
                        const CoreAttentionOptions& options, QkvHeads& dx) = 0;
};

/// Attention with all keys on this rank.
class LocalAttention final : public CoreAttention {
 public:
  AttentionResult forward(const QkvHeads& x, const CoreAttentionOptions& options) override;
  void backward(const Tensor& dout, const QkvHeads& x, const AttentionResult& y, const CoreAttentionOptions& options,
                QkvHeads& dx) override;
};

/// Context-parallel configuration of a rank. By default it holds all positions.
struct ContextParallel {
  CpCommType comm_type = CpCommType::P2p;
  SequencePartition partition;
  i64 rank = 0;                   ///< rank in [0, partition.ranks())
  Communicator* heads = nullptr;  ///< ranks that exchange heads; null = none
  Communicator* ring = nullptr;   ///< ranks that share keys and values; null = none

  i64 size() const { return partition.ranks(); }
  i64 member() const { return rank / partition.heads; }  ///< index in the ring

  std::unique_ptr<CoreAttention> make_core_attention() const;
  /// Creates the exchange for `query_groups` on this rank; returns null if heads are not exchanged.
  std::unique_ptr<HeadExchange> make_head_exchange(i64 query_groups) const;
};

}  // namespace mcpp
