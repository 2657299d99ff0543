#include "parallel/cp/sequence_exchange.h"

namespace mcpp {
namespace {

/// Calls f(row of the first position of a chunk among those of all members, its row in the sequence).
template <class F>
void for_each_chunk(const SamplePartition& partition, i64 members, const F& f) {
  for (i64 member = 0; member < members; ++member) {
    i64 row = member * partition.runs() * partition.chunk();
    for (const i64 chunk : partition.chunks_of(member)) {
      f(row, chunk * partition.chunk());
      row += partition.chunk();
    }
  }
}

void copy_rows(const Tensor& from, i64 first, const Tensor& to, i64 to_first, i64 rows) {
  Tensor destination = to.slice(to_first, to_first + rows);
  ops::copy(from.slice(first, first + rows), destination);
}

/// Views [n, s, b, width] as columns [s, b, n, width].
Heads columns_of_parts(const Tensor& x) {
  const i64 batch = x.dim(2), width = x.dim(3);
  return {.base = x,
          .seq = x.dim(1),
          .batch = batch,
          .heads = x.dim(0),
          .head_dim = width,
          .group_size = 1,
          .seq_stride = batch * width,
          .batch_stride = width,
          .group_stride = x.dim(1) * batch * width};
}

}  // namespace

SequenceExchange::SequenceExchange(const ContextParallel& cp) : cp_(cp), heads_(cp.make_head_exchange(1)) {}

i64 SequenceExchange::part() const {
  const SequencePartition& ranks = cp_.partition;
  return cp_.rank % ranks.heads * ranks.rings + cp_.member();
}

Tensor SequenceExchange::to_sequence(const Tensor& x, const SamplePartition* partition) {
  if (cp_.size() == 1) return x;
  MCPP_CHECK(partition, "context parallelism over ", cp_.size(), " ranks needs a partition of the samples");
  const Tensor member = heads_ ? heads_->to_heads(x, partition->runs()) : x;
  return cp_.partition.rings == 1 ? member : gather_ring(member, *partition);
}

Tensor SequenceExchange::to_positions(const Tensor& x, const SamplePartition* partition) {
  if (cp_.size() == 1) return x;
  MCPP_CHECK(partition, "context parallelism over ", cp_.size(), " ranks needs a partition of the samples");
  const Tensor member = cp_.partition.rings == 1 ? x : scatter_ring(x, *partition);
  return heads_ ? heads_->to_positions(member, partition->runs()) : member;
}

Tensor SequenceExchange::gather_ring(const Tensor& x, const SamplePartition& partition) {
  const i64 n = cp_.partition.rings, rows = x.dim(0), b = x.dim(1), width = x.dim(2) / n;
  const Tensor packed = Tensor::like(x, {n, rows, b, width});
  Heads parts = columns_of_parts(packed);
  ops::copy_heads(dense_heads(x, n), parts);
  Tensor received = Tensor::like(x, {n * rows, b, width});
  cp_.ring->all_to_all(packed, received).wait();
  Tensor sequence = Tensor::like(received);
  for_each_chunk(partition, n, [&](i64 row, i64 at) { copy_rows(received, row, sequence, at, partition.chunk()); });
  return sequence;
}

Tensor SequenceExchange::scatter_ring(const Tensor& x, const SamplePartition& partition) {
  const i64 n = cp_.partition.rings, rows = x.dim(0) / n, b = x.dim(1), width = x.dim(2);
  const Tensor packed = Tensor::like(x);
  for_each_chunk(partition, n, [&](i64 row, i64 at) { copy_rows(x, at, packed, row, partition.chunk()); });
  Tensor received = Tensor::like(x, {n, rows, b, width});
  cp_.ring->all_to_all(packed, received).wait();
  Tensor member = Tensor::like(x, {rows, b, n * width});
  Heads columns = dense_heads(member, n);
  ops::copy_heads(columns_of_parts(received), columns);
  return member;
}

}  // namespace mcpp
