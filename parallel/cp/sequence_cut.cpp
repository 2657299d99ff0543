#include "parallel/cp/sequence_cut.h"

#include "tensor/ops/ops.h"

namespace mcpp {

PositionRanges SequenceCut::of(i64 rank, i64 rows) const {
  if (ranks() == 1) return {};
  MCPP_CHECK(rank >= 0 && rank < ranks() && rows % 2 == 0, "rank ", rank, " of ", ranks(), " with ", rows, " rows");
  const i64 ring = rank / heads, part = rows / 2, piece = part * heads, inside = rank % heads * part;
  return {.first = ring * piece + inside, .split = part, .second = (2 * rings - 1 - ring) * piece + inside};
}

Tensor rows_at(const Tensor& whole, const PositionRanges& at, i64 rows) {
  if (at.first == 0 && rows == whole.dim(0)) return whole;
  Shape shape = whole.shape();
  shape[0] = rows;
  Tensor part = Tensor::like(whole, shape);
  const i64 split = std::min(at.split, rows);
  Tensor first = part.slice(0, split), second = part.slice(split, rows);
  ops::copy(whole.slice(at.first, at.first + split), first);
  if (split < rows) ops::copy(whole.slice(at.second, at.second + rows - split), second);
  return part;
}

}  // namespace mcpp
