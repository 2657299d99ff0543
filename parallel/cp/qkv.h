// Queries, keys and values of one microbatch on one rank, as returned by the projection.
#pragma once
#include "tensor/ops/ops.h"

namespace mcpp {

/// Megatron's fused tensor `queries` [s, b, groups, q + 2, head_dim] for the groups of this rank. If the rank has only
/// some heads of one group, whose keys and values are replicated, `queries` is [s, b, heads, head_dim] and
/// `keys_values` is [s, b, 2, head_dim].
struct Qkv {
  Tensor queries, keys_values;

  bool is_fused() const { return !keys_values.defined(); }
  QkvHeads heads() const;
  /// Returns uninitialized tensors of the same shapes.
  Qkv like() const;
};

}  // namespace mcpp
