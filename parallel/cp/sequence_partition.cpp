#include "parallel/cp/sequence_partition.h"

#include "tensor/ops/ops.h"

namespace mcpp {

SamplePartition SamplePartition::zigzag(const SequencePartition& ranks, i64 seq_length) {
  if (ranks.ranks() == 1) return {ranks, seq_length, {0}};
  std::vector<i64> pieces;
  for (i64 member = 0; member < ranks.rings; ++member)
    pieces.insert(pieces.end(), {member, 2 * ranks.rings - 1 - member});
  return {ranks, seq_length, std::move(pieces)};
}

SamplePartition::SamplePartition(const SequencePartition& ranks, i64 seq_length, std::vector<i64> pieces,
                                 std::vector<i64> first_keys)
    : ranks_(ranks), seq_length_(seq_length), pieces_(std::move(pieces)), first_keys_(std::move(first_keys)) {
  const auto count = static_cast<i64>(pieces_.size());
  MCPP_CHECK(count > 0 && count % ranks.rings == 0 && runs() <= PositionRanges::kMaxRuns &&
                 seq_length % (count * ranks.heads) == 0,
             seq_length, " positions in ", count, " pieces for ", ranks.rings, " x ", ranks.heads, " ranks");
  MCPP_CHECK(first_keys_.empty() || first_keys_.size() == pieces_.size(), first_keys_.size(), " first keys of ", count);
}

std::span<const i64> SamplePartition::pieces_of(i64 member) const {
  MCPP_CHECK(member >= 0 && member < ranks_.rings, "member ", member, " of ", ranks_.rings);
  return std::span(pieces_).subspan(static_cast<std::size_t>(member * runs()), static_cast<std::size_t>(runs()));
}

PositionRanges SamplePartition::positions(i64 member, i64 inside, i64 rows) const {
  std::vector<i64> begins;
  for (const i64 number : pieces_of(member)) begins.push_back(number * piece() + inside);
  return PositionRanges::runs(begins, rows);
}

PositionRanges SamplePartition::of_rank(i64 rank) const {
  const i64 part = piece() / ranks_.heads;
  return positions(rank / ranks_.heads, rank % ranks_.heads * part, part);
}

bool SamplePartition::sees(i64 queries, i64 keys, i64 window) const {
  for (const i64 number : pieces_of(queries)) {
    const i64 begin = number * piece(), end = begin + piece();
    i64 first = first_keys_.empty() ? 0 : first_keys_[static_cast<std::size_t>(number)];
    if (window > 0) first = std::max(first, begin - window + 1);
    for (const i64 key : pieces_of(keys)) {
      if (key * piece() < end && (key + 1) * piece() > first) return true;
    }
  }
  return false;
}

i64 SamplePartition::reach(i64 keys, i64 window) const {
  for (i64 hops = ranks_.rings - 1; hops > 0; --hops) {
    if (sees((keys + hops) % ranks_.rings, keys, window)) return hops;
  }
  return 0;
}

Tensor rows_at(const Tensor& full, const PositionRanges& at, i64 rows) {
  if (at.first == 0 && rows == full.dim(0)) return full;
  Shape shape = full.shape();
  shape[0] = rows;
  Tensor part = Tensor::like(full, shape);
  for (i64 row = 0; row < rows;) {
    const PositionRanges rest = at.from(row);
    const i64 run = std::min(rest.split, rows - row);
    Tensor to = part.slice(row, row + run);
    ops::copy(full.slice(rest.first, rest.first + run), to);
    row += run;
  }
  return part;
}

}  // namespace mcpp
