// Cache of the keys and values of previous tokens, so that a new token costs one position instead of the full context.
#pragma once
#include <vector>

#include "base/stored_ref.h"
#include "model/config/block_spec.h"
#include "model/config/context.h"
#include "tensor/ops/ops.h"

namespace mcpp {

class KvCache {
 public:
  /// Reserves `max_length` positions of `batch` sequences in every layer that is appended to. A pipeline stage uses
  /// only some of the layers.
  KvCache(StoredRef<ModelContext> context, i64 batch, i64 max_length);

  /// Returns the bytes of a layer with this attention after the first append().
  static i64 layer_bytes(const ModelContext& context, const AttentionSpec& attention, i64 batch, i64 max_length);

  struct View {
    Heads k, v;
  };
  /// Copies the keys and values of new positions, starting at first_position, and returns views of all so far. Each
  /// value is stored after its key, as in Megatron's fused tensor, so that one copy moves both.
  View append(i64 index, const Heads& k, const Heads& v, i64 first_position);
  i64 max_length() const { return max_length_; }

 private:
  Tensor& layer(i64 index, const Heads& k);

  const ModelContext& context_;
  i64 batch_, max_length_;
  std::vector<Tensor> layers_;  // [max_length, b, groups, key and value, head_dim] each
};

}  // namespace mcpp
