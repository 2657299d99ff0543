// The backward pass of attention by blocks of queries and of keys, for kernels that need memory for every pair of the
// two at hand.
#pragma once
#include <functional>

#include "tensor/ops/ops.h"

namespace mcpp {

/// Rows [first, first + count) of the sequence of x.
Heads some_rows(const Heads& x, i64 first, i64 count);

/// ops::attention_backward for one pair of blocks, into gradients of the wide type. False where it cannot compute this.
using BlockBackward = std::function<bool(const Tensor& dout, const QkvHeads& x, const AttentionResult& y,
                                         const AttentionOptions& options, QkvHeads& dx)>;

/// ops::attention_backward by calls of `backward` with at most `rows` queries and as many keys, each with the
/// log-sum-exp over all keys, so that their gradients add up; no call for keys that are in the future of all its
/// queries. Beside what the calls take it needs fp32 (fp64) memory for the gradients of all keys and values, and for
/// those of a few blocks. Sums are in the order of the blocks: the same bits every time. False, with dx still to be
/// computed, when a call is.
bool attention_backward_by_blocks(const Tensor& dout, const QkvHeads& x, const AttentionResult& y,
                                  const AttentionOptions& options, QkvHeads& dx, i64 rows,
                                  const BlockBackward& backward);

}  // namespace mcpp
