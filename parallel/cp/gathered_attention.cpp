#include "parallel/cp/gathered_attention.h"

#include "parallel/cp/key_values.h"
#include "tensor/wide.h"

namespace mcpp {
namespace {

CoreAttentionOptions over_all_keys(CoreAttentionOptions options) {
  options.keys = {};
  return options;
}

Shape with_rows(const Tensor& x, i64 rows) {
  Shape shape = x.shape();
  shape[0] = rows;
  return shape;
}

/// Gathers the pieces of all ranks [s / n, ...] into sequence order [s, ...].
Tensor gather_sequence(Communicator& group, const SampleCut& cut, const Tensor& mine) {
  const i64 n = group.size(), piece = cut.piece();
  Tensor whole = Tensor::like(mine, with_rows(mine, n * mine.dim(0)));
  if (cut.is_consecutive()) {
    group.all_gather(mine, whole).wait();
    return whole;
  }
  Tensor run_of_all = Tensor::like(mine, with_rows(mine, n * piece));
  for (i64 run = 0; run < cut.runs(); ++run) {
    group.all_gather(mine.slice(run * piece, (run + 1) * piece), run_of_all).wait();
    for (i64 rank = 0; rank < n; ++rank) {
      const i64 at = cut.pieces_of(rank)[static_cast<std::size_t>(run)] * piece;
      Tensor place = whole.slice(at, at + piece);
      ops::copy(run_of_all.slice(rank * piece, (rank + 1) * piece), place);
    }
  }
  return whole;
}

/// Reduce-scatters `whole`; returns this rank's pieces of the sum.
Tensor scatter_sequence(Communicator& group, const SampleCut& cut, const Tensor& whole) {
  const i64 n = group.size(), piece = cut.piece();
  Tensor mine = Tensor::like(whole, with_rows(whole, whole.dim(0) / n));
  if (cut.is_consecutive()) {
    group.reduce_scatter(whole, mine).wait();
    return mine;
  }
  Tensor run_of_all = Tensor::like(whole, with_rows(whole, n * piece));
  for (i64 run = 0; run < cut.runs(); ++run) {
    for (i64 rank = 0; rank < n; ++rank) {
      const i64 at = cut.pieces_of(rank)[static_cast<std::size_t>(run)] * piece;
      Tensor place = run_of_all.slice(rank * piece, (rank + 1) * piece);
      ops::copy(whole.slice(at, at + piece), place);
    }
    Tensor sum = mine.slice(run * piece, (run + 1) * piece);
    group.reduce_scatter(run_of_all, sum).wait();
  }
  return mine;
}

}  // namespace

QkvHeads GatheredAttention::with_all_keys(const QkvHeads& x, const SampleCut& cut) {
  const KeyValues all{gather_sequence(group_, cut, KeyValues::of(x).both)};
  return {x.q, all.keys(), all.values()};
}

AttentionResult GatheredAttention::forward(const QkvHeads& x, const CoreAttentionOptions& options) {
  return LocalAttention().forward(with_all_keys(x, *options.cut), over_all_keys(options));
}

void GatheredAttention::backward(const Tensor& dout, const QkvHeads& x, const AttentionResult& y,
                                 const CoreAttentionOptions& options, QkvHeads& dx) {
  const QkvHeads whole = with_all_keys(x, *options.cut);
  const KeyValues all = KeyValues::like(x, whole.k.seq, wide(x.k.base.dtype()));
  QkvHeads d_whole{dx.q, all.keys(), all.values()};
  ops::attention_backward(dout, whole, y, over_all_keys(options), d_whole);
  KeyValues{scatter_sequence(group_, *options.cut, all.both)}.copy_to(dx);
}

}  // namespace mcpp
