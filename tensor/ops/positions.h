// Where tokens stand in their samples, for every op that asks: rotary and learned positions, dropout's keys, and the
// mask of attention.
#pragma once
#include <algorithm>
#include <limits>
#include <span>

#include "tensor/tensor.h"

namespace mcpp {

/// The positions of the rows of a sequence, as runs of consecutive ones: row i stands at first + i, from row `split` on
/// at second + (i - split), and where there are `more` runs, each of those before the last has `length` rows. They
/// ascend: no run begins before the one before it ends. One run is a whole sequence, a part of one, or what follows a
/// cache; several are what context parallelism gives to a rank. For the host and for kernels.
struct PositionRanges {
  static constexpr i64 kNone = std::numeric_limits<i64>::max();
  static constexpr i64 kMostRuns = 16;
  i64 first = 0;
  i64 split = kNone;               ///< rows of the first run; kNone = all
  i64 second = kNone;              ///< where the second run begins
  i64 length = kNone;              ///< rows of the second run and of the ones between; kNone without `more`
  i64 more = 0;                    ///< runs after the second
  i64 begins[kMostRuns - 2] = {};  ///< where these begin

  /// Runs of `rows` each.
  static constexpr PositionRanges runs(std::span<const i64> at, i64 rows) {
    if (at.size() == 1) return {.first = at[0]};
    PositionRanges result{.first = at[0], .split = rows, .second = at[1]};
    result.more = static_cast<i64>(at.size()) - 2;
    if (result.more > 0) result.length = rows;
    for (i64 i = 0; i < result.more; ++i) result.begins[i] = at[static_cast<std::size_t>(i + 2)];
    return result;
  }

  bool operator==(const PositionRanges&) const = default;
  constexpr i64 at(i64 row) const {
    if (row < split) return first + row;
    const i64 run = run_after_first(row);
    return begin_after_first(run) + (row - split) - (run > 0 ? run * length : 0);
  }
  /// How many rows stand before `position`, if the sequence never ended.
  constexpr i64 rows_before(i64 position) const {
    i64 rows = std::min(std::max(position - first, i64{0}), split);
    for (i64 run = 0; run <= more; ++run) {
      const i64 passed = std::max(position - begin_after_first(run), i64{0});
      rows += run < more ? std::min(passed, length) : passed;
    }
    return rows;
  }
  /// Of the rows from `row` on, which become rows 0, 1, ...
  constexpr PositionRanges from(i64 row) const {
    if (split == kNone) return {.first = first + row};
    PositionRanges rest = *this;
    if (row < split) {
      rest.first += row, rest.split -= row;
      return rest;
    }
    const i64 run = run_after_first(row);
    if (run == more) return {.first = at(row)};
    rest = {.first = at(row), .split = (run + 1) * length - (row - split), .second = begins[run]};
    rest.more = more - run - 1;
    if (rest.more > 0) rest.length = length;
    for (i64 i = 0; i < rest.more; ++i) rest.begins[i] = begins[run + 1 + i];
    return rest;
  }

 private:
  /// Runs are counted from the second.
  constexpr i64 run_after_first(i64 row) const { return more == 0 ? 0 : std::min((row - split) / length, more); }
  constexpr i64 begin_after_first(i64 run) const { return run == 0 ? second : begins[run - 1]; }
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
