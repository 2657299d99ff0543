// Cache of the keys and values of previous tokens and of recurrent states, so that a new token costs one position
// instead of the full context. Multi-latent attention may cache the latents from which it computes keys and values.
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

  /// Returns true if layers with this attention cache latents, which core attention then uses as keys and values of
  /// one head of that width; otherwise they cache the keys and values of each head.
  static bool holds_latents(const MultiLatentAttentionSpec& attention, DeviceType device);
  /// Returns the bytes of a layer with this block after its first append; 0 without a mixer.
  static i64 layer_bytes(const ModelContext& context, const BlockSpec& block, i64 batch, i64 max_length);

  struct View {
    Heads k, v;
  };
  /// Copies the keys and values of new positions, starting at first_position, and returns views of all so far. Each
  /// value is stored after its key, as in Megatron's fused tensor, so that one copy moves both.
  View append(i64 index, const Heads& k, const Heads& v, i64 first_position);
  /// Copies rows [s, b, width] of new positions, starting at first_position, and returns a view of all so far as one
  /// head.
  Heads append_rows(i64 index, const Tensor& rows, i64 first_position);
  i64 max_length() const { return max_length_; }

  /// State of a recurrent mixer after the last position: inputs of the convolution, [taps - 1, b, channels], and states
  /// of the heads, [b, heads, key_dim, value_dim] in fp32 (fp64).
  struct RecurrentState {
    Tensor conv, scan;
  };
  /// Returns the state of a layer whose groups on this rank have this shape; uninitialized at first.
  RecurrentState& recurrent_state(i64 index, const ScanShape& shape, i64 conv_taps);
  /// Returns the bytes of this state for a layer with this mixer.
  static i64 recurrent_bytes(const ModelContext& context, const RecurrentSpec& mixer, i64 batch);

 private:
  Tensor& layer(i64 index, const Shape& position);
  void check_length(i64 length) const;

  const ModelContext& context_;
  i64 batch_, max_length_;
  /// [max_length, b, groups, key and value, head_dim] each, or [max_length, b, width] of append_rows().
  std::vector<Tensor> layers_;
  std::vector<RecurrentState> states_;
};

}  // namespace mcpp
