#include "model/layers/kv_cache.h"

#include <algorithm>

namespace mcpp {
namespace {

/// The first `length` positions of a cache tensor.
Heads view_of(const Tensor& cache, i64 length) {
  const i64 batch = cache.dim(1), heads = cache.dim(2), head_dim = cache.dim(3);
  return {.base = cache,
          .seq = length,
          .batch = batch,
          .heads = heads,
          .head_dim = head_dim,
          .seq_stride = batch * heads * head_dim,
          .batch_stride = heads * head_dim,
          .group_stride = head_dim};
}

void copy_in(const Heads& from, const Tensor& cache, i64 first_position) {
  const i64 row = from.head_dim;
  for (i64 s = 0; s < from.seq; ++s) {
    for (i64 b = 0; b < from.batch; ++b) {
      for (i64 head = 0; head < from.heads; ++head) {
        const i64 source = from.offset + s * from.seq_stride + b * from.batch_stride + head * from.group_stride;
        Tensor slot = cache.flat((((first_position + s) * from.batch + b) * from.heads + head) * row, row);
        ops::copy(from.base.flat(source, row), slot);
      }
    }
  }
}

}  // namespace

KvCache::KvCache(const ModelContext& context, i64 batch, i64 max_length) : max_length_(max_length) {
  const ModelConfig& config = context.config;
  const i64 groups = std::max<i64>(1, config.query_groups() / context.tp.size());
  const Shape shape{max_length, batch, groups, config.head_dim()};
  for (i64 layer = 0; layer < config.num_layers; ++layer) {
    keys_.push_back(Tensor::empty(shape, context.dtype, context.device));
    values_.push_back(Tensor::empty(shape, context.dtype, context.device));
  }
}

KvCache::View KvCache::append(i64 layer, const Heads& k, const Heads& v, i64 first_position) {
  const i64 length = first_position + k.seq;
  MCPP_CHECK(length <= max_length_, "the cache holds ", max_length_, " positions, ", length, " are needed");
  const auto i = static_cast<std::size_t>(layer);
  copy_in(k, keys_[i], first_position);
  copy_in(v, values_[i], first_position);
  return {view_of(keys_[i], length), view_of(values_[i], length)};
}

}  // namespace mcpp
