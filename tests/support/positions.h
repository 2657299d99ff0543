// Positions of tokens: ranges as sharded by context parallelism, and randomly packed documents.
#pragma once
#include <string>
#include <vector>

#include "base/philox.h"
#include "tensor/ops/positions.h"
#include "tests/support/tensors.h"

namespace mcpp::test {

inline PositionRanges after(i64 first) {
  return {.first = first};
}
/// Returns the positions of rank `rank` of `ranks` in a sequence of 2 * ranks chunks.
inline PositionRanges zigzag(i64 rank, i64 ranks, i64 chunk) {
  return {.first = rank * chunk, .split = chunk, .second = (2 * ranks - 1 - rank) * chunk};
}
/// Returns one or two ranges of positions for `rows` rows.
inline PositionRanges random_ranges(i64 rows, u64 seed) {
  const auto draw = [&](const char* what, i64 below) {
    return static_cast<i64>(philox_key(seed, what) % static_cast<u64>(below));
  };
  const i64 first = draw("first", 50);
  if (draw("runs", 3) == 0) return after(first);
  const i64 split = draw("split", rows + 1);
  PositionRanges ranges{.first = first, .split = split, .second = first + split + draw("gap", 100)};
  ranges.more = draw("more", 3) * draw("many", PositionRanges::kMaxRuns - 2) / 2;
  if (ranges.more > 0) ranges.length = 1 + draw("length", rows / ranges.more + 1);
  for (i64 i = 0, begin = ranges.second; i < ranges.more; ++i)
    ranges.begins[i] = begin += ranges.length + draw(i % 2 == 0 ? "even" : "odd", 20);
  return ranges;
}

inline std::string text_of(const PositionRanges& x) {
  if (x.split == PositionRanges::kNone) return str(x.first);
  std::string text = str(x.first, " x ", x.split, ", ", x.second);
  if (x.more > 0) text += str(" x ", x.length);
  for (i64 i = 0; i < x.more; ++i) text += str(", ", x.begins[i]);
  return text;
}

/// Returns starts on the host, [rows, batch]: each sample is split into about `documents` documents at random places.
inline std::vector<i32> starts_on_host(const PositionRanges& at, i64 rows, i64 batch, i64 documents, u64 seed) {
  std::vector<i32> starts(static_cast<std::size_t>(rows * batch));
  for (i64 b = 0; b < batch; ++b) {
    i64 start = 0, position = 0;
    for (i64 s = 0; s < rows; ++s) {
      for (; position <= at.at(s); ++position) {
        const u64 drawn = philox_key(seed + static_cast<u64>(b), "document", static_cast<u64>(position));
        if (drawn % static_cast<u64>(at.at(rows - 1) + 1) < static_cast<u64>(documents)) start = position;
      }
      starts[static_cast<std::size_t>(s * batch + b)] = static_cast<i32>(start);
    }
  }
  return starts;
}
inline Tensor random_starts(const PositionRanges& at, i64 rows, i64 batch, i64 documents, u64 seed, Device& device) {
  return integers_of(starts_on_host(at, rows, batch, documents, seed), device).view({rows, batch});
}

/// Positions of the rows of a sequence, with about `documents` documents per sample (0: no starts).
struct PositionCase {
  PositionRanges ranges;
  i64 documents = 0;

  Positions of(i64 rows, i64 batch, Device& device) const {
    return {ranges, documents > 0 ? random_starts(ranges, rows, batch, documents, 1, device) : Tensor()};
  }
  /// Returns the position of each token in its document, [rows, batch].
  std::vector<i64> in_documents(i64 rows, i64 batch) const {
    const std::vector<i32> starts = starts_on_host(ranges, rows, batch, documents, 1);
    std::vector<i64> result;
    for (std::size_t t = 0; t < starts.size(); ++t)
      result.push_back(ranges.at(static_cast<i64>(t) / batch) - (documents > 0 ? starts[t] : 0));
    return result;
  }
};
/// Returns cases with one, two and several ranges, each with and without documents.
inline std::vector<PositionCase> every_position_case(i64 rows) {
  const PositionRanges two{.first = 1, .split = rows / 2, .second = rows / 2 + 4};
  PositionRanges several{.first = 1, .split = 2, .second = 3, .length = 1, .more = 2};
  several.begins[0] = 4, several.begins[1] = 6;
  return {{after(3)}, {two}, {several}, {after(2), 3}, {two, 5}, {several, 5}};
}

}  // namespace mcpp::test
