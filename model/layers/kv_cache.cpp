#include "model/layers/kv_cache.h"

#include <algorithm>

namespace mcpp {
namespace {

/// Returns a view of positions [first, first + length) of a layer, in which each key is followed by its value.
Heads key_value_pairs(const Tensor& cache, i64 first, i64 length) {
  const i64 batch = cache.dim(1), groups = cache.dim(2), head_dim = cache.dim(4),
            position = 2 * batch * groups * head_dim;
  return {.base = cache,
          .offset = first * position,
          .seq = length,
          .batch = batch,
          .heads = 2 * groups,
          .head_dim = head_dim,
          .group_size = 2,
          .seq_stride = position,
          .batch_stride = 2 * groups * head_dim,
          .group_stride = 2 * head_dim};
}

/// Returns the heads at `offset` within each pair: 0 for keys, head_dim for values.
Heads select_from_pairs(Heads pairs, i64 offset) {
  pairs.offset += offset;
  pairs.heads /= 2;
  pairs.group_size = 1;
  return pairs;
}

Heads key_value_view(const Heads& k, const Heads& v) {
  MCPP_CHECK(k.group_size == 1 && v.base.raw() == k.base.raw() && v.offset == k.offset + k.head_dim,
             "each value must directly follow its key");
  Heads pairs = k;
  pairs.heads *= 2;
  pairs.group_size = 2;
  return pairs;
}

}  // namespace

KvCache::KvCache(StoredRef<ModelContext> context, i64 batch, i64 max_length)
    : context_(context),
      batch_(batch),
      max_length_(max_length),
      layers_(static_cast<std::size_t>(context_.config.num_layers)),
      states_(layers_.size()) {}

bool KvCache::holds_latents(const MultiLatentAttentionSpec& attention, DeviceType device) {
  constexpr i64 kMaxCudaHeadDim = 256;  // limit of the attention kernels
  return device != DeviceType::Cuda || attention.latent_width() <= kMaxCudaHeadDim;
}

i64 KvCache::layer_bytes(const ModelContext& context, const BlockSpec& block, i64 batch, i64 max_length) {
  if (block.recurrent()) return recurrent_bytes(context, *block.recurrent(), batch);
  const auto bytes = [&](i64 width) { return max_length * batch * width * static_cast<i64>(size_of(context.dtype)); };
  if (const MultiLatentAttentionSpec* latent = block.latent_attention();
      latent && holds_latents(*latent, context.device.type()))
    return bytes(latent->latent_width());
  const std::optional<AttentionSpec> attention = block.core_attention();
  if (!attention) return 0;
  return bytes(std::max<i64>(1, attention->num_query_groups / context.tp.size()) * 2 * attention->head_dim);
}

i64 KvCache::recurrent_bytes(const ModelContext& context, const RecurrentSpec& mixer, i64 batch) {
  const i64 tp = context.tp.size(), heads = mixer.shape.heads() / tp,
            inputs = (mixer.conv_taps - 1) * mixer.shape.groups / tp * mixer.shape.conv_width();
  return batch * (inputs * size_of(context.dtype) +
                  heads * mixer.shape.key_dim * mixer.shape.value_dim * size_of(accumulate_dtype(context.dtype)));
}

KvCache::RecurrentState& KvCache::recurrent_state(i64 index, const ScanShape& shape, i64 conv_taps) {
  RecurrentState& state = states_.at(static_cast<std::size_t>(index));
  if (state.scan.defined()) return state;
  state.conv =
      Tensor::empty({conv_taps - 1, batch_, shape.groups * shape.conv_width()}, context_.dtype, context_.device);
  state.scan = Tensor::empty({batch_, shape.heads(), shape.key_dim, shape.value_dim}, accumulate_dtype(context_.dtype),
                             context_.device);
  return state;
}

Tensor& KvCache::layer(i64 index, const Shape& position) {
  Tensor& layer = layers_.at(static_cast<std::size_t>(index));
  Shape shape{max_length_, batch_};
  shape.insert(shape.end(), position.begin(), position.end());
  if (!layer.defined()) layer = Tensor::empty(shape, context_.dtype, context_.device);
  return layer;
}

void KvCache::check_length(i64 length) const {
  MCPP_CHECK(length <= max_length(), "the cache holds ", max_length(), " positions, ", length, " are needed");
}

Heads KvCache::append_rows(i64 index, const Tensor& rows, i64 first_position) {
  const i64 length = first_position + rows.dim(0);
  check_length(length);
  const Tensor& cache = layer(index, {rows.dim(2)});
  Tensor added = cache.slice(first_position, length);
  ops::copy(rows, added);
  return dense_heads(cache.slice(0, length), 1);
}

KvCache::View KvCache::append(i64 index, const Heads& k, const Heads& v, i64 first_position) {
  const i64 length = first_position + k.seq;
  check_length(length);
  const Tensor& layer_cache = layer(index, {k.heads, 2, k.head_dim});
  Heads added = key_value_pairs(layer_cache, first_position, k.seq);
  ops::copy_heads(key_value_view(k, v), added);
  const Heads all = key_value_pairs(layer_cache, 0, length);
  return {select_from_pairs(all, 0), select_from_pairs(all, all.head_dim)};
}

}  // namespace mcpp
