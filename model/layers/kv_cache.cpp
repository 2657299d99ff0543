#include "model/layers/kv_cache.h"

#include <algorithm>

namespace mcpp {
namespace {

/// Positions [first, first + length) of a cache tensor.
Heads view_of(const Tensor& cache, i64 first, i64 length) {
  const i64 batch = cache.dim(1), heads = cache.dim(2), head_dim = cache.dim(3), position = batch * heads * head_dim;
  return {.base = cache,
          .offset = first * position,
          .seq = length,
          .batch = batch,
          .heads = heads,
          .head_dim = head_dim,
          .seq_stride = position,
          .batch_stride = heads * head_dim,
          .group_stride = head_dim};
}

void copy_in(const Heads& from, const Tensor& cache, i64 first_position) {
  Heads slots = view_of(cache, first_position, from.seq);
  ops::copy_heads(from, slots);
}

}  // namespace

KvCache::KvCache(KeptRef<ModelContext> context, i64 batch, i64 max_length)
    : context_(context),
      shape_{max_length, batch, std::max<i64>(1, context_.config.query_groups() / context_.tp.size()),
             context_.config.head_dim()},
      layers_(static_cast<std::size_t>(context_.config.num_layers)) {}

KvCache::Layer& KvCache::layer(i64 index) {
  Layer& layer = layers_.at(static_cast<std::size_t>(index));
  for (Tensor* t : {&layer.keys, &layer.values}) {
    if (!t->defined()) *t = Tensor::empty(shape_, context_.dtype, context_.device);
  }
  return layer;
}

KvCache::View KvCache::append(i64 index, const Heads& k, const Heads& v, i64 first_position) {
  const i64 length = first_position + k.seq;
  MCPP_CHECK(length <= max_length(), "the cache holds ", max_length(), " positions, ", length, " are needed");
  const Layer& here = layer(index);
  copy_in(k, here.keys, first_position);
  copy_in(v, here.values, first_position);
  return {view_of(here.keys, 0, length), view_of(here.values, 0, length)};
}

}  // namespace mcpp
