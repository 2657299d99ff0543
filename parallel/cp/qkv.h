// Queries, keys and values of one microbatch on one rank, as the projection gives them.
#pragma once
#include "tensor/ops/ops.h"

namespace mcpp {

/// `queries` is Megatron's fused tensor [s, b, groups, q + 2, head_dim] of the groups that this rank has; or, where it
/// has some heads of one group whose keys and values other ranks have as well, it is [s, b, heads, head_dim] and
/// `keys_values` is [s, b, 2, head_dim].
struct Qkv {
  Tensor queries, keys_values;

  bool is_fused() const { return !keys_values.defined(); }
  QkvHeads heads() const;
  /// Uninitialised, of the same shapes.
  Qkv like() const;
};

}  // namespace mcpp
