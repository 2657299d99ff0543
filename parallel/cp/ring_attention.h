// Ring attention: keys and values are passed from rank to rank, overlapped with computation. Liu, Zaharia, Abbeel,
// "Ring Attention with Blockwise Transformers for Near-Infinite Context", 2023.
#pragma once
#include "comm/communicator.h"
#include "parallel/cp/context_parallel.h"

namespace mcpp {

/// Ring implementation of core attention. The ranks of `ring` hold the sequence in chunks (SamplePartition). A rank
/// first uses its own keys, then the keys of preceding ranks, which it receives from its predecessor while computing
/// with the current keys. Partial results are merged in the accumulation type. In backward, keys and values circulate
/// again, followed by their gradient in the accumulation type. The gradient starts at the first rank that contributes;
/// the last rank sends the sum to the owner, which adds its own contribution.
///
/// Keys travel only as far as the last rank that sees them (SamplePartition::reach), which all ranks compute
/// identically. Traffic per owner of keys with reach r, for k bytes of keys and values (w in the accumulation type):
/// forward r k; backward r k and at most r w. r is less than the number of ranks n; without documents and windows it is
/// n - 1. Relies on Communicator's guarantee that a send does not wait for its receive.
class RingAttention final : public CoreAttention {
 public:
  explicit RingAttention(Communicator& ring) : ring_(ring) {}

  AttentionResult forward(const QkvHeads& x, const CoreAttentionOptions& options) override;
  void backward(const Tensor& dout, const QkvHeads& x, const AttentionResult& y, const CoreAttentionOptions& options,
                QkvHeads& dx) override;

 private:
  Communicator& ring_;
};

}  // namespace mcpp
