// Where tokens stand in their samples, for every op that asks: rotary and learned positions, dropout's keys, and the
// mask of attention.
#pragma once
#include <algorithm>
#include <limits>

#include "tensor/tensor.h"

namespace mcpp {

/// The positions of the rows of a sequence, as at most two runs of consecutive ones: row i stands at first + i, from
/// row `split` on at second + (i - split). They ascend: second >= first + split, or there is no second run. One run is
/// a whole sequence, a part of one, or what follows a cache; two are what zigzag context parallelism gives to rank r of
/// cp, pieces r and 2 cp - 1 - r of 2 cp. For the host and for kernels.
struct PositionRanges {
  static constexpr i64 kNone = std::numeric_limits<i64>::max();
  i64 first = 0;
  i64 split = kNone;   ///< rows of the first run; kNone = all
  i64 second = kNone;  ///< where the second run begins

  bool operator==(const PositionRanges&) const = default;
  constexpr i64 at(i64 row) const { return row < split ? first + row : second + (row - split); }
  /// How many rows stand before `position`, if the sequence never ended.
  constexpr i64 rows_before(i64 position) const {
    return std::min(std::max(position - first, i64{0}), split) + std::max(position - second, i64{0});
  }
  /// Of the rows from `row` on, which become rows 0, 1, ...
  constexpr PositionRanges from(i64 row) const {
    if (split == kNone) return {first + row, kNone, kNone};
    return row < split ? PositionRanges{first + row, split - row, second}
                       : PositionRanges{second + (row - split), kNone, kNone};
  }
};

/// Where the tokens [s, b] of a microbatch stand, and where the documents begin that its samples are packed from.
struct Positions {
  PositionRanges ranges;  ///< of all samples alike
  /// int32 [s, b]: the position at which the document of each token begins. At most its own, and never descending along
  /// a sample. Undefined = 0 everywhere: a sample is one document.
  Tensor starts;

  /// The elements of `starts`, or null.
  const i32* starts_or_null() const { return starts.defined() ? starts.data<i32>() : nullptr; }
  /// Of rows [begin, end).
  Positions slice(i64 begin, i64 end) const {
    return {ranges.from(begin), starts.defined() ? starts.slice(begin, end) : Tensor()};
  }
};

}  // namespace mcpp
