// Ring attention: keys and values travel from rank to rank while each computes with those that it has.
// Liu, Zaharia, Abbeel, "Ring Attention with Blockwise Transformers for Near-Infinite Context", 2023.
#pragma once
#include "comm/communicator.h"
#include "parallel/cp/core_attention.h"

namespace mcpp {

/// The ranks of `ring` hold the sequence in pieces (SampleCut). A rank computes with its own keys first, then with
/// those of the ranks before it, which come from its predecessor while the ones at hand are computed with. Partial
/// results are merged in the wide type. Backward goes round once more: what others add to the gradient of keys and
/// values follows them, in the wide type, from the first rank that has a share; the last one that has one sends the sum
/// home, where the owner's own share waits.
///
/// Keys travel no further than to the last rank that sees some (SampleCut::reach), which all ranks know alike. Sent per
/// owner of keys whose reach is r, for k bytes of keys and values (w in the wide type): forward r k; backward r k and
/// at most r w. r is below n, the number of ranks: without documents and windows n - 1. A send must not wait for its
/// receive, as Communicator says.
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
