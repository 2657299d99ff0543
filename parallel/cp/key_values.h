// Keys and values side by side, as they travel between ranks.
#pragma once
#include "tensor/ops/ops.h"

namespace mcpp {

/// One tensor [s, b, 2, groups, head_dim] of keys and values, or of their gradients.
struct KeyValues {
  Tensor both;

  /// Uninitialised, like x's, for `seq` rows.
  static KeyValues like(const QkvHeads& x, i64 seq, DType dtype);
  /// A copy.
  static KeyValues of(const QkvHeads& x);

  Heads keys() const { return half(0); }
  Heads values() const { return half(1); }
  /// Copies, converted, to the keys and values of `x`.
  void copy_to(QkvHeads& x) const;

 private:
  Heads half(i64 index) const;
};

}  // namespace mcpp
