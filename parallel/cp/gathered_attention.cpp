#include "parallel/cp/gathered_attention.h"

#include "parallel/cp/key_values.h"
#include "tensor/wide.h"

namespace mcpp {
namespace {

AttentionOptions over_all_keys(AttentionOptions options) {
  options.keys = {};
  return options;
}

/// `to` = the `count` equal parts of `from`, the last one first.
void reverse_parts(const Tensor& from, i64 count, Tensor& to) {
  const i64 rows = from.dim(0) / count;
  for (i64 i = 0; i < count; ++i) {
    Tensor place = to.slice((count - 1 - i) * rows, (count - i) * rows);
    ops::copy(from.slice(i * rows, (i + 1) * rows), place);
  }
}

/// The zigzag pieces of all ranks [s / n, ...] in the order of the sequence [s, ...]: first pieces ascend with the
/// rank, second ones descend.
Tensor gather_sequence(Communicator& group, const Tensor& mine) {
  const i64 rows = mine.dim(0), half = rows / 2, all = rows * group.size();
  Shape shape = mine.shape();
  shape[0] = all;
  Tensor whole = Tensor::like(mine, shape);
  Tensor front = whole.slice(0, all / 2), back = whole.slice(all / 2, all), reversed = Tensor::like(back);
  Work first = group.all_gather(mine.slice(0, half), front),
       second = group.all_gather(mine.slice(half, rows), reversed);
  first.wait(), second.wait();
  reverse_parts(reversed, group.size(), back);
  return whole;
}

/// This rank's pieces of the sum of all `whole`.
Tensor scatter_sequence(Communicator& group, const Tensor& whole) {
  const i64 all = whole.dim(0), rows = all / group.size();
  Shape shape = whole.shape();
  shape[0] = rows;
  Tensor mine = Tensor::like(whole, shape);
  Tensor first = mine.slice(0, rows / 2), second = mine.slice(rows / 2, rows);
  const Tensor back = whole.slice(all / 2, all);
  Tensor reversed = Tensor::like(back);
  reverse_parts(back, group.size(), reversed);
  Work front_work = group.reduce_scatter(whole.slice(0, all / 2), first),
       back_work = group.reduce_scatter(reversed, second);
  front_work.wait(), back_work.wait();
  return mine;
}

}  // namespace

QkvHeads GatheredAttention::with_all_keys(const QkvHeads& x) {
  const KeyValues all{gather_sequence(group_, KeyValues::of(x).both)};
  return {x.q, all.keys(), all.values()};
}

AttentionResult GatheredAttention::forward(const QkvHeads& x, const AttentionOptions& options) {
  return LocalAttention().forward(with_all_keys(x), over_all_keys(options));
}

void GatheredAttention::backward(const Tensor& dout, const QkvHeads& x, const AttentionResult& y,
                                 const AttentionOptions& options, QkvHeads& dx) {
  const QkvHeads whole = with_all_keys(x);
  const KeyValues all = KeyValues::like(x, whole.k.seq, wide(x.k.base.dtype()));
  QkvHeads d_whole{dx.q, all.keys(), all.values()};
  ops::attention_backward(dout, whole, y, over_all_keys(options), d_whole);
  KeyValues{scatter_sequence(group_, all.both)}.copy_to(dx);
}

}  // namespace mcpp
