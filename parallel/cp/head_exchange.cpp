#include "parallel/cp/head_exchange.h"

#include "tensor/wide.h"

namespace mcpp {
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
  Heads both = heads.k;
  both.head_dim *= 2;
  return both;
}

/// Views the queries as `ranks` columns, each with the heads of one rank; several per group.
Heads query_columns(const Qkv& x, i64 ranks) {
  Heads q = x.heads().q;
  const i64 heads = q.heads / ranks;
  q.heads = ranks, q.head_dim *= heads, q.group_size /= heads;
  return q;
}

}  // namespace

Tensor HeadExchange::give(const Heads& columns, i64 runs) {
  const i64 n = group_.size(), rows = columns.seq / runs, b = columns.batch, width = columns.head_dim;
  Tensor whole = Tensor::like(columns.base, {n * columns.seq, b, width});
  std::vector<Work> works;
  for (i64 run = 0; run < runs; ++run) {
    const Tensor packed = Tensor::like(columns.base, {n, rows, b, width});
    Heads parts = parts_as_columns(packed);
    ops::copy_heads(run_of(columns, run, runs), parts);
    Tensor piece = whole.slice(run * n * rows, (run + 1) * n * rows);
    works.push_back(group_.all_to_all(packed, piece));
  }
  for (Work& work : works) work.wait();
  return whole;
}

void HeadExchange::take_back(const Tensor& exchanged, Heads& columns, i64 runs) {
  const i64 n = group_.size(), rows = columns.seq / runs, b = columns.batch, width = columns.head_dim;
  std::vector<Tensor> packed;
  std::vector<Work> works;
  for (i64 run = 0; run < runs; ++run) {
    packed.push_back(Tensor::like(exchanged, {n, rows, b, width}));
    works.push_back(group_.all_to_all(exchanged.slice(run * n * rows, (run + 1) * n * rows), packed.back()));
  }
  for (i64 run = 0; run < runs; ++run) {
    works[static_cast<std::size_t>(run)].wait();
    Heads place = run_of(columns, run, runs);
    ops::copy_heads(parts_as_columns(packed[static_cast<std::size_t>(run)]), place);
  }
}

Qkv HeadExchange::to_heads(const Qkv& mine, i64 runs) {
  const i64 n = group_.size(), s = mine.queries.dim(0), b = mine.queries.dim(1);
  const QkvHeads heads = mine.heads();
  const i64 head_dim = heads.k.head_dim;
  if (!shares_groups()) {
    const Tensor whole = give(dense_heads(mine.queries, n), runs);
    return {whole.view({n * s, b, query_groups_ / n, mine.queries.dim(3), head_dim}), {}};
  }
  const i64 sharing = n / query_groups_;  // ranks that get the same group
  const Tensor queries = give(query_columns(mine, n), runs);
  const Tensor copies = Tensor::like(mine.queries, {s, b, n * 2 * head_dim});
  const Heads columns = dense_heads(copies, n), own = keys_and_values(mine);
  for (i64 i = 0; i < sharing; ++i) {
    Heads column = every_head(columns, i, sharing);
    ops::copy_heads(own, column);
  }
  return {queries.view({n * s, b, heads.q.heads / n, head_dim}), give(columns, runs).view({n * s, b, 2, head_dim})};
}

Qkv HeadExchange::gradient_of_heads(const Qkv& x) const {
  if (!shares_groups()) return x.like();
  const Tensor& kv = x.keys_values;
  return {Tensor::like(x.queries), Tensor::empty(kv.shape(), wide(kv.dtype()), kv.device())};
}

void HeadExchange::to_positions(const Qkv& gradient, Qkv& mine, i64 runs) {
  const i64 n = group_.size(), s = mine.queries.dim(0), b = mine.queries.dim(1);
  if (!shares_groups()) {
    Heads columns = dense_heads(mine.queries, n);
    return take_back(gradient.queries, columns, runs);
  }
  Heads queries = query_columns(mine, n), own = keys_and_values(mine);
  take_back(gradient.queries, queries, runs);
  const i64 sharing = n / own.heads, width = own.head_dim;
  const Tensor parts = Tensor::like(gradient.keys_values, {s, b, n * width});
  Heads columns = dense_heads(parts, n);
  take_back(gradient.keys_values, columns, runs);
  Tensor sum = Tensor::like(parts, {s, b, own.heads * width}), part = Tensor::like(sum);
  for (i64 i = 0; i < sharing; ++i) {
    Heads to = dense_heads(i == 0 ? sum : part, own.heads);
    ops::copy_heads(every_head(columns, i, sharing), to);
    if (i > 0) ops::add_to(part, sum);
  }
  ops::copy_heads(dense_heads(sum, own.heads), own);
}

Tensor HeadExchange::to_heads(const Tensor& out, i64 runs) {
  return give(dense_heads(out, group_.size()), runs);
}

Tensor HeadExchange::to_positions(const Tensor& out, i64 runs) {
  const i64 n = group_.size();
  const Tensor mine = Tensor::like(out, {out.dim(0) / n, out.dim(1), n * out.dim(2)});
  Heads columns = dense_heads(mine, n);
  take_back(out, columns, runs);
  return mine;
}

}  // namespace mcpp
