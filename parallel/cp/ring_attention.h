// Ring attention: keys and values travel from rank to rank while each computes with those that it has.
// Liu, Zaharia, Abbeel, "Ring Attention with Blockwise Transformers for Near-Infinite Context", 2023.
#pragma once
#include "comm/communicator.h"
#include "parallel/cp/core_attention.h"

namespace mcpp {

/// The ranks of `ring` hold the sequence in pieces (SampleCut). A rank computes with its own keys first, then with
/// those of the ranks before it, which come from its predecessor while the ones at hand are computed with. Partial
/// results are merged in the wide type. Backward goes round once more; with the keys and values travels their gradient,
/// in the wide type, to which each rank adds its share before passing it on; the last one that has a share sends it
/// home.
///
/// Keys travel no further than to the last rank that sees some (SampleCut::reach), which all ranks know alike. Sent per
/// owner of keys whose reach is r, for k bytes of keys and values (w in the wide type): forward r k; backward r k and,
/// unless r = 0, (r + 1) w. r is below n, the number of ranks: without documents and windows n - 1.
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
