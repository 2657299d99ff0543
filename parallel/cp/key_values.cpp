#include "parallel/cp/key_values.h"

namespace mcpp {

KeyValues KeyValues::like(const QkvHeads& x, i64 seq, DType dtype) {
  return {Tensor::empty({seq, x.k.batch, 2, x.k.heads, x.k.head_dim}, dtype, x.k.base.device())};
}

KeyValues KeyValues::of(const QkvHeads& x) {
  const KeyValues result = like(x, x.k.seq, x.k.base.dtype());
  Heads keys = result.keys(), values = result.values();
  ops::copy_heads(x.k, keys);
  ops::copy_heads(x.v, values);
  return result;
}

Heads KeyValues::half(i64 index) const {
  return slice_heads(dense_heads(both, 2 * both.dim(3)), index * both.dim(3), both.dim(3));
}

void KeyValues::copy_to(QkvHeads& x) const {
  ops::copy_heads(keys(), x.k);
  ops::copy_heads(values(), x.v);
}

}  // namespace mcpp
