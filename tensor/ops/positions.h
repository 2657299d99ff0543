// Token positions within samples, for rotary and learned positions, dropout keys, and the attention mask.
#pragma once
#include <algorithm>
#include <limits>
#include <span>

#include "tensor/tensor.h"

namespace mcpp {

/// Positions of the rows of a sequence, as runs of consecutive positions. Row i is at first + i; from row `split` on at
/// second + (i - split). If there are `more` runs, each run between the first and the last has `length` rows. Positions
/// ascend: no run begins before the previous run ends. A single run represents a full sequence, a part of a sequence,
/// or the continuation of a cache; context parallelism results in several runs. Usable on the host and in kernels.
struct PositionRanges {
  static constexpr i64 kNone = std::numeric_limits<i64>::max();
  static constexpr i64 kMaxRuns = 16;
  i64 first = 0;
  i64 split = kNone;              ///< rows of the first run; kNone = all
  i64 second = kNone;             ///< first position of the second run
  i64 length = kNone;             ///< rows of the second run and of the middle runs; kNone without `more`
  i64 more = 0;                   ///< number of runs after the second
  i64 begins[kMaxRuns - 2] = {};  ///< first positions of the runs after the second

  /// Returns runs of `rows` rows each, which begin at the positions `at`.
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
  /// Returns the number of rows before `position`, as if the sequence were unbounded.
  constexpr i64 rows_before(i64 position) const {
    i64 rows = std::min(std::max(position - first, i64{0}), split);
    for (i64 run = 0; run <= more; ++run) {
      const i64 num_before = std::max(position - begin_after_first(run), i64{0});
      rows += run < more ? std::min(num_before, length) : num_before;
    }
    return rows;
  }
  /// Returns the positions of the rows from `row` on, which become rows 0, 1, ...
  constexpr PositionRanges from(i64 row) const {
    if (split == kNone) return {.first = first + row};
    PositionRanges remaining = *this;
    if (row < split) {
      remaining.first += row, remaining.split -= row;
      return remaining;
    }
    const i64 run = run_after_first(row);
    if (run == more) return {.first = at(row)};
    remaining = {.first = at(row), .split = (run + 1) * length - (row - split), .second = begins[run]};
    remaining.more = more - run - 1;
    if (remaining.more > 0) remaining.length = length;
    for (i64 i = 0; i < remaining.more; ++i) remaining.begins[i] = begins[run + 1 + i];
    return remaining;
  }

 private:
  /// Runs are numbered from the second one, which has number 0.
  constexpr i64 run_after_first(i64 row) const { return more == 0 ? 0 : std::min((row - split) / length, more); }
  constexpr i64 begin_after_first(i64 run) const { return run == 0 ? second : begins[run - 1]; }
};

/// Positions of the tokens [s, b] of a microbatch, and the starts of the documents packed into its samples.
struct Positions {
  PositionRanges ranges;  ///< common to all samples
  /// Position at which the document of each token begins, int32 [s, b]. It is at most the token's own position and
  /// non-decreasing along a sample. Undefined = 0: each sample is one document.
  Tensor starts;

  /// Returns the elements of `starts`, or null.
  const i32* starts_or_null() const { return starts.defined() ? starts.data<i32>() : nullptr; }
  /// Returns the positions of rows [begin, end).
  Positions slice(i64 begin, i64 end) const {
    return {ranges.from(begin), starts.defined() ? starts.slice(begin, end) : Tensor()};
  }
};

}  // namespace mcpp
