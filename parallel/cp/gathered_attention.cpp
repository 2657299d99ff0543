#include "parallel/cp/gathered_attention.h"

#include <algorithm>

#include "tensor/dtype.h"

namespace mcpp {

KeyValues KeyValues::like(const QkvHeads& x, i64 seq, DType dtype) {
  const i64 key_dim = x.k.head_dim, value_dim = x.v.head_dim;
  const Shape shape{seq, x.k.batch, 2, x.k.heads, std::max(key_dim, value_dim)};
  Device& device = x.k.base.device();
  return {key_dim == value_dim ? Tensor::empty(shape, dtype, device)
                               : Tensor::zeros(shape, dtype, device, MemoryClass::Activations),
          key_dim, value_dim};
}

KeyValues KeyValues::of(const QkvHeads& x) {
  const KeyValues result = like(x, x.k.seq, x.k.base.dtype());
  Heads keys = result.keys(), values = result.values();
  ops::copy_heads(x.k, keys);
  ops::copy_heads(x.v, values);
  return result;
}

Heads KeyValues::half(i64 index, i64 head_dim) const {
  Heads heads = slice_heads(dense_heads(tensor, 2 * tensor.dim(3)), index * tensor.dim(3), tensor.dim(3));
  if (head_dim == heads.head_dim) return heads;
  heads = strided_heads(heads, 0, 1);
  heads.head_dim = head_dim;
  return heads;
}

void KeyValues::copy_to(QkvHeads& x) const {
  ops::copy_heads(keys(), x.k);
  ops::copy_heads(values(), x.v);
}

namespace {

CoreAttentionOptions options_for_all_keys(CoreAttentionOptions options) {
  options.keys = {};
  return options;
}

Shape shape_with_rows(const Tensor& x, i64 rows) {
  Shape shape = x.shape();
  shape[0] = rows;
  return shape;
}

/// Gathers the chunks of all ranks [s / n, ...] into sequence order [s, ...].
Tensor gather_sequence(Communicator& group, const SamplePartition& partition, const Tensor& local) {
  const i64 n = group.size(), chunk = partition.chunk();
  Tensor full = Tensor::like(local, shape_with_rows(local, n * local.dim(0)));
  if (partition.is_consecutive()) {
    group.all_gather(local, full).wait();
    return full;
  }
  Tensor run_of_all = Tensor::like(local, shape_with_rows(local, n * chunk));
  for (i64 run = 0; run < partition.runs(); ++run) {
    group.all_gather(local.slice(run * chunk, (run + 1) * chunk), run_of_all).wait();
    for (i64 rank = 0; rank < n; ++rank) {
      const i64 offset = partition.chunks_of(rank)[static_cast<std::size_t>(run)] * chunk;
      Tensor destination = full.slice(offset, offset + chunk);
      ops::copy(run_of_all.slice(rank * chunk, (rank + 1) * chunk), destination);
    }
  }
  return full;
}

/// Reduce-scatters `full`; returns this rank's chunks of the sum.
Tensor scatter_sequence(Communicator& group, const SamplePartition& partition, const Tensor& full) {
  const i64 n = group.size(), chunk = partition.chunk();
  Tensor local = Tensor::like(full, shape_with_rows(full, full.dim(0) / n));
  if (partition.is_consecutive()) {
    group.reduce_scatter(full, local).wait();
    return local;
  }
  Tensor run_of_all = Tensor::like(full, shape_with_rows(full, n * chunk));
  for (i64 run = 0; run < partition.runs(); ++run) {
    for (i64 rank = 0; rank < n; ++rank) {
      const i64 offset = partition.chunks_of(rank)[static_cast<std::size_t>(run)] * chunk;
      Tensor destination = run_of_all.slice(rank * chunk, (rank + 1) * chunk);
      ops::copy(full.slice(offset, offset + chunk), destination);
    }
    Tensor sum = local.slice(run * chunk, (run + 1) * chunk);
    group.reduce_scatter(run_of_all, sum).wait();
  }
  return local;
}

}  // namespace

QkvHeads GatheredAttention::gather_keys(const QkvHeads& x, const SamplePartition& partition) {
  const KeyValues all{gather_sequence(group_, partition, KeyValues::of(x).tensor), x.k.head_dim, x.v.head_dim};
  return {x.q, all.keys(), all.values()};
}

AttentionResult GatheredAttention::forward(const QkvHeads& x, const CoreAttentionOptions& options) {
  return LocalAttention().forward(gather_keys(x, *options.partition), options_for_all_keys(options));
}

void GatheredAttention::backward(const Tensor& dout, const QkvHeads& x, const AttentionResult& y,
                                 const CoreAttentionOptions& options, QkvHeads& dx) {
  const QkvHeads full = gather_keys(x, *options.partition);
  const KeyValues all = KeyValues::like(x, full.k.seq, accumulate_dtype(x.k.base.dtype()));
  QkvHeads d_full{dx.q, all.keys(), all.values()};
  ops::attention_backward(dout, full, y, options_for_all_keys(options), d_full);
  KeyValues{scatter_sequence(group_, *options.partition, all.tensor), all.key_dim, all.value_dim}.copy_to(dx);
}

}  // namespace mcpp
