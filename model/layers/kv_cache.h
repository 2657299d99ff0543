// Cache for generation. It holds the keys and values of previous tokens and the recurrent states, so that a new token
// does not recompute the context. Multi-latent attention may cache latents instead of the keys and values computed from
// them.
#pragma once
#include <vector>

#include "base/stored_ref.h"
#include "model/config/block_spec.h"
#include "model/config/context.h"
#include "tensor/ops/ops.h"

namespace mcpp {

class KvCache {
 public:
  /// Creates a cache for `batch` sequences of up to `max_length` positions. Memory of a layer is allocated at its first
  /// append, since a pipeline stage uses only some of the layers.
  KvCache(StoredRef<ModelContext> context, i64 batch, i64 max_length);

  /// Returns true if layers with this attention cache latents, which core attention uses as the keys and values of a
  /// single head. Otherwise they cache the keys and values of each head.
  static bool holds_latents(const MultiLatentAttentionSpec& attention, DeviceType device);
  /// Returns the cache bytes of a layer with this block. 0 without a mixer.
  static i64 layer_bytes(const ModelContext& context, const BlockSpec& block, i64 batch, i64 max_length);

  struct View {
    Heads k, v;
  };
  /// Copies the keys and values of new positions, starting at first_position, and returns views of all positions up to
  /// the last new one. The value of a head is stored after its key, as in Megatron's fused tensor, so that one copy
  /// moves both.
  View append(i64 index, const Heads& k, const Heads& v, i64 first_position);
  /// Copies rows [s, b, width] of new positions, starting at first_position, and returns a view of all rows so far as
  /// one head.
  Heads append_rows(i64 index, const Tensor& rows, i64 first_position);
  i64 max_length() const { return max_length_; }

  /// State of a recurrent mixer after the last position: the last inputs of the convolution, [taps - 1, b, channels],
  /// and the states of the heads, [b, heads, key_dim, value_dim] in fp32 (fp64).
  struct RecurrentState {
    Tensor conv, scan;
  };
  /// Returns the state of a layer with this shape on this rank. It is uninitialized after the first call.
  RecurrentState& recurrent_state(i64 index, const ScanShape& shape, i64 conv_taps);
  /// Returns the bytes of RecurrentState for a layer with this mixer.
  static i64 recurrent_bytes(const ModelContext& context, const RecurrentSpec& mixer, i64 batch);

 private:
  Tensor& layer(i64 index, const Shape& position);
  void check_length(i64 length) const;

  const ModelContext& context_;
  i64 batch_, max_length_;
  /// Tensors by layer: [max_length, b, groups, 2, head_dim] with keys and values, or [max_length, b, width] for
  /// append_rows().
  std::vector<Tensor> layers_;
  std::vector<RecurrentState> states_;
};

}  // namespace mcpp
