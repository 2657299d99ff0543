#include "parallel/ep/sequence_shard.h"

#include <algorithm>

#include "base/integer_math.h"
#include "tensor/ops/ops.h"

namespace mcpp {

i64 SequenceShard::rows_each(i64 rows) const {
  return tp_ ? ceil_div(rows, tp_->size()) : rows;
}

i64 SequenceShard::first_row(i64 rows) const {
  return tp_ ? std::min(rows, rows_each(rows) * tp_->rank()) : 0;
}

i64 SequenceShard::count(i64 rows) const {
  return std::min(rows - first_row(rows), rows_each(rows));
}

Tensor SequenceShard::of(const Tensor& x) const {
  if (!tp_) return x;
  const i64 rows = x.dim(0), first = first_row(rows), own = count(rows);
  if (own == rows_each(rows)) return x.slice(first, first + own);
  Tensor part = Tensor::zeros({rows_each(rows), x.dim(1)}, x.dtype(), x.device());
  Tensor filled = part.slice(0, own);
  if (own > 0) ops::copy(x.slice(first, first + own), filled);
  return part;
}

Tensor SequenceShard::whole(const Tensor& part, i64 rows) const {
  if (!tp_) return part;
  Tensor all = Tensor::like(part, {part.dim(0) * tp_->size(), part.dim(1)});
  tp_->all_gather(part, all).wait();
  return all.slice(0, rows);
}

}  // namespace mcpp
