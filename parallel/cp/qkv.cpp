#include "parallel/cp/qkv.h"

namespace mcpp {

QkvHeads Qkv::heads() const {
  if (is_fused()) return packed_heads(queries);
  const Heads both = dense_heads(keys_values, 2);
  return {dense_heads(queries, queries.dim(2)), slice_heads(both, 0, 1), slice_heads(both, 1, 1)};
}

Qkv Qkv::like() const {
  return {Tensor::like(queries), is_fused() ? Tensor() : Tensor::like(keys_values)};
}

}  // namespace mcpp
