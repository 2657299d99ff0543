// Backward pass of attention by blocks of queries and keys, for kernels that need memory for every query-key pair.
#pragma once
#include <functional>

#include "tensor/ops/ops.h"

namespace mcpp {

/// Returns a view of rows [first, first + count) along the sequence of x.
Heads slice_rows(const Heads& x, i64 first, i64 count);

/// Computes the backward pass of attention for one pair of blocks, with gradients in the accumulate dtype. Returns
/// false if the case is not supported.
using BlockBackward = std::function<bool(const Tensor& dout, const QkvHeads& x, const AttentionResult& y,
                                         const AttentionOptions& options, QkvHeads& dx)>;

/// Computes ops::attention_backward() by calling `backward` with at most `rows` queries and `rows` keys. Each call
/// receives the log-sum-exp over all keys, so that the gradients add up. Blocks whose keys are all in the future of
/// their queries are skipped. Allocates fp32 (fp64) memory for the gradients of all keys and values and of a few
/// blocks, in addition to the memory of the calls. Gradients are summed in block order, so results are deterministic.
/// Returns false, with dx unspecified, if `backward` returns false.
bool attention_backward_by_blocks(const Tensor& dout, const QkvHeads& x, const AttentionResult& y,
                                  const AttentionOptions& options, QkvHeads& dx, i64 rows,
                                  const BlockBackward& backward);

}  // namespace mcpp
