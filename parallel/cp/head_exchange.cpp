#include "parallel/cp/head_exchange.h"

#include "tensor/dtype.h"

namespace mcpp {

QkvHeads Qkv::heads() const {
  if (is_fused()) return packed_heads(queries);
  const Heads pairs = dense_heads(keys_values, 2);
  return {dense_heads(queries, queries.dim(2)), slice_heads(pairs, 0, 1), slice_heads(pairs, 1, 1)};
}

Qkv Qkv::like() const {
  return {Tensor::like(queries), is_fused() ? Tensor() : Tensor::like(keys_values)};
}

namespace {

/// Returns the rows of one of the runs in x, which are consecutive.
Heads run_of(const Heads& x, i64 run, i64 runs) {
  Heads part = x;
  part.seq = x.seq / runs;
  part.offset += run * part.seq * x.seq_stride;
  return part;
}

/// Views a tensor [n, s, b, width] as columns: column i of a row is row s, b of part i.
Heads parts_as_columns(const Tensor& x) {
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

/// Views the keys and values of each group as one head. Accepts the fused tensor, or keys_values alone as one group.
Heads keys_and_values(const Qkv& x) {
  const QkvHeads heads = x.heads();
  Heads pairs = heads.k;
  pairs.head_dim *= 2;
  return pairs;
}

/// Views the queries as `ranks` columns, each with the heads of one rank; several per group.
Heads query_columns(const Qkv& x, i64 ranks) {
  Heads q = x.heads().q;
  const i64 heads = q.heads / ranks;
  q.heads = ranks, q.head_dim *= heads, q.group_size /= heads;
  return q;
}

}  // namespace

Tensor HeadExchange::scatter_columns(const Heads& columns, i64 runs) {
  const i64 n = group_.size(), rows = columns.seq / runs, b = columns.batch, width = columns.head_dim;
  Tensor full = Tensor::like(columns.base, {n * columns.seq, b, width});
  std::vector<Work> works;
  for (i64 run = 0; run < runs; ++run) {
    const Tensor packed = Tensor::like(columns.base, {n, rows, b, width});
    Heads parts = parts_as_columns(packed);
    ops::copy_heads(run_of(columns, run, runs), parts);
    Tensor chunk = full.slice(run * n * rows, (run + 1) * n * rows);
    works.push_back(group_.all_to_all(packed, chunk));
  }
  for (Work& work : works) work.wait();
  return full;
}

void HeadExchange::gather_columns(const Tensor& exchanged, Heads& columns, i64 runs) {
  const i64 n = group_.size(), rows = columns.seq / runs, b = columns.batch, width = columns.head_dim;
  std::vector<Tensor> packed;
  std::vector<Work> works;
  for (i64 run = 0; run < runs; ++run) {
    packed.push_back(Tensor::like(exchanged, {n, rows, b, width}));
    works.push_back(group_.all_to_all(exchanged.slice(run * n * rows, (run + 1) * n * rows), packed.back()));
  }
  for (i64 run = 0; run < runs; ++run) {
    works[static_cast<std::size_t>(run)].wait();
    Heads destination = run_of(columns, run, runs);
    ops::copy_heads(parts_as_columns(packed[static_cast<std::size_t>(run)]), destination);
  }
}

Qkv HeadExchange::to_heads(const Qkv& local, i64 runs) {
  const i64 n = group_.size(), s = local.queries.dim(0), b = local.queries.dim(1);
  const QkvHeads heads = local.heads();
  const i64 head_dim = heads.k.head_dim;
  if (!shares_groups()) {
    const Tensor full = scatter_columns(dense_heads(local.queries, n), runs);
    return {full.view({n * s, b, query_groups_ / n, local.queries.dim(3), head_dim}), {}};
  }
  const i64 ranks_per_group = n / query_groups_;
  const Tensor queries = scatter_columns(query_columns(local, n), runs);
  const Tensor copies = Tensor::like(local.queries, {s, b, n * 2 * head_dim});
  const Heads columns = dense_heads(copies, n), key_values = keys_and_values(local);
  for (i64 i = 0; i < ranks_per_group; ++i) {
    Heads column = strided_heads(columns, i, ranks_per_group);
    ops::copy_heads(key_values, column);
  }
  return {queries.view({n * s, b, heads.q.heads / n, head_dim}),
          scatter_columns(columns, runs).view({n * s, b, 2, head_dim})};
}

Qkv HeadExchange::gradient_of_heads(const Qkv& x) const {
  if (!shares_groups()) return x.like();
  const Tensor& kv = x.keys_values;
  return {Tensor::like(x.queries), Tensor::empty(kv.shape(), accumulate_dtype(kv.dtype()), kv.device())};
}

void HeadExchange::to_positions(const Qkv& gradient, Qkv& local, i64 runs) {
  const i64 n = group_.size(), s = local.queries.dim(0), b = local.queries.dim(1);
  if (!shares_groups()) {
    Heads columns = dense_heads(local.queries, n);
    return gather_columns(gradient.queries, columns, runs);
  }
  Heads queries = query_columns(local, n), key_values = keys_and_values(local);
  gather_columns(gradient.queries, queries, runs);
  const i64 ranks_per_group = n / key_values.heads, width = key_values.head_dim;
  const Tensor parts = Tensor::like(gradient.keys_values, {s, b, n * width});
  Heads columns = dense_heads(parts, n);
  gather_columns(gradient.keys_values, columns, runs);
  Tensor sum = Tensor::like(parts, {s, b, key_values.heads * width}), part = Tensor::like(sum);
  for (i64 i = 0; i < ranks_per_group; ++i) {
    Heads to = dense_heads(i == 0 ? sum : part, key_values.heads);
    ops::copy_heads(strided_heads(columns, i, ranks_per_group), to);
    if (i > 0) ops::add_to(part, sum);
  }
  ops::copy_heads(dense_heads(sum, key_values.heads), key_values);
}

Tensor HeadExchange::to_heads(const Tensor& out, i64 runs) {
  return scatter_columns(dense_heads(out, group_.size()), runs);
}

Tensor HeadExchange::to_positions(const Tensor& out, i64 runs) {
  const i64 n = group_.size();
  const Tensor local = Tensor::like(out, {out.dim(0) / n, out.dim(1), n * out.dim(2)});
  Heads columns = dense_heads(local, n);
  gather_columns(out, columns, runs);
  return local;
}

}  // namespace mcpp
