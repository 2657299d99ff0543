// Keys and values in one tensor, as they are sent between ranks.
#pragma once
#include "tensor/ops/ops.h"

namespace mcpp {

/// Tensor [s, b, 2, groups, head_dim] of keys and values, or of their gradients.
struct KeyValues {
  Tensor both;

  /// Returns an uninitialized tensor shaped like the keys and values of x, with `seq` rows.
  static KeyValues like(const QkvHeads& x, i64 seq, DType dtype);
  /// Copies the keys and values of x.
  static KeyValues of(const QkvHeads& x);

  Heads keys() const { return half(0); }
  Heads values() const { return half(1); }
  /// Copies to the keys and values of `x`, converting the dtype.
  void copy_to(QkvHeads& x) const;

 private:
  Heads half(i64 index) const;
};

}  // namespace mcpp
