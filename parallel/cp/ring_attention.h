// Ring attention: keys and values travel from rank to rank while each computes with those that it has.
// Liu, Zaharia, Abbeel, "Ring Attention with Blockwise Transformers for Near-Infinite Context", 2023.
#pragma once
#include "comm/communicator.h"
#include "parallel/cp/core_attention.h"

namespace mcpp {

/// The ranks of `ring` hold the sequence in zigzag pieces (SequenceCut). A rank computes with its own keys first, then
/// with those of the ranks before it, which come from its predecessor while the ones at hand are computed with. Partial
/// results are merged in the wide type. Backward goes round once more; with the keys and values travels their gradient,
/// in the wide type, to which each rank adds its share before passing it on, until it is home.
///
/// Sent per rank, for n ranks and k bytes of its keys and values (w in the wide type): forward (n - 1) k, backward
/// (n - 1) k + n w.
class RingAttention final : public CoreAttention {
 public:
  explicit RingAttention(Communicator& ring) : ring_(ring) {}

  AttentionResult forward(const QkvHeads& x, const AttentionOptions& options) override;
  void backward(const Tensor& dout, const QkvHeads& x, const AttentionResult& y, const AttentionOptions& options,
                QkvHeads& dx) override;

 private:
  int next() const { return (ring_.rank() + 1) % ring_.size(); }
  int previous() const { return (ring_.rank() + ring_.size() - 1) % ring_.size(); }
  PositionRanges keys_after(int hops, i64 rows) const;

  Communicator& ring_;
};

}  // namespace mcpp
