// Views of the columns of heads, or of other groups of channels, inside activations [s, b, groups * width].
#pragma once
#include "base/check.h"
#include "tensor/ops/ops.h"

namespace mcpp {

/// Returns a view of x [s, b, heads * width] whose heads can be sliced by select_columns().
inline Heads separate_heads(const Tensor& x, i64 heads) {
  return strided_heads(dense_heads(x, heads), 0, 1);
}

/// Returns columns [first, first + count) of each head.
inline Heads select_columns(Heads x, i64 first, i64 count) {
  MCPP_CHECK(x.group_size == 1 && first + count <= x.head_dim, "columns [", first, ", ", first + count,
             ") are not in heads of ", x.head_dim, " columns in groups of ", x.group_size);
  x.offset += first;
  x.head_dim = count;
  return x;
}

inline void copy_columns(const Heads& from, Heads to) {
  ops::copy_heads(from, to);
}

}  // namespace mcpp
