// Which positions of a sequence the ranks of a context-parallel group hold. Everything that attention does not concern
// works on them as if they were a sequence of their own.
#pragma once
#include "tensor/ops/positions.h"

namespace mcpp {

/// Ranks number ring * heads + i, i below `heads`, are member `ring` of the ring: together they hold two pieces of
/// 2 * rings equal ones of the sequence, number `ring` from the front and number `ring` from the back, so that causal
/// attention costs each member the same ("zigzag"; Llama 3, Megatron-LM). Each of the `heads` ranks holds an equal part
/// of both pieces, and exchanges positions for heads with the others when attention begins.
struct SequenceCut {
  i64 heads = 1;  ///< ranks that exchange heads
  i64 rings = 1;  ///< members of the ring

  i64 ranks() const { return heads * rings; }
  /// The positions of a rank's `rows` rows, ranks() times as many of which are the sequence. Even, unless alone.
  PositionRanges of(i64 rank, i64 rows) const;
};

/// The rows of `whole` [s, ...], of the whole sequence, that stand at `at`: [rows, ...], copied.
Tensor rows_at(const Tensor& whole, const PositionRanges& at, i64 rows);

}  // namespace mcpp
