// Attention over gathered keys and values: each rank temporarily has all keys, but only its own queries. With grouped
// queries, keys are small; and every softmax sum is computed by one rank, regardless of document boundaries. Llama
// Team, "The Llama 3 Herd of Models", 2024, section 3.3.2.
#pragma once
#include "comm/communicator.h"
#include "parallel/cp/core_attention.h"

namespace mcpp {

/// All-gather implementation of core attention. The ranks of `group` hold the sequence in pieces (SamplePartition).
/// Backward gathers keys and values again instead of saving them; their gradients are reduce-scattered in the
/// accumulation type.
///
/// Traffic per rank, for n ranks and k bytes of its keys and values (w in the accumulation type): forward (n - 1) k,
/// backward (n - 1) (k + w).
class GatheredAttention final : public CoreAttention {
 public:
  explicit GatheredAttention(Communicator& group) : group_(group) {}

  AttentionResult forward(const QkvHeads& x, const CoreAttentionOptions& options) override;
  void backward(const Tensor& dout, const QkvHeads& x, const AttentionResult& y, const CoreAttentionOptions& options,
                QkvHeads& dx) override;

 private:
  QkvHeads with_all_keys(const QkvHeads& x, const SamplePartition& cut);

  Communicator& group_;
};

}  // namespace mcpp
