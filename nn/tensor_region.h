// Elements of a global tensor held by a rank: a box, or a flat range of the row-major elements of a box. Model weights
// are full boxes; an optimizer sharded over data-parallel ranks holds flat ranges of boxes. Any two regions overlap in
// a list of contiguous runs, so any layout can load any checkpoint.
#pragma once
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "nn/param.h"

namespace mcpp {

struct Region {
  Box box;
  i64 flat_begin = 0;  ///< elements [flat_begin, flat_end) of the box, in row-major order
  i64 flat_end = 0;

  i64 numel() const { return flat_end - flat_begin; }
  bool is_full_box() const { return flat_begin == 0 && flat_end == mcpp::numel(box.shape); }
};

/// Returns the region that covers all of `box`.
Region full_region(Box box);

/// Returns a description of the defect of an invalid region, or "" if the region is valid (equal ranks, nonnegative
/// sizes, inside the global shape).
std::string find_defect(const Region& region);

/// Decomposes the region into at most 2 * rank - 1 disjoint boxes, in row-major order.
std::vector<Box> boxes_of(const Region& region);

/// Returns the intersection of two boxes of the same global tensor, or std::nullopt if it is empty.
std::optional<Box> intersection(const Box& a, const Box& b);

/// Returns the number of elements common to two regions of the same global tensor.
i64 overlap(const Region& a, const Region& b);

/// Calls f(from_element, to_element, count) for each run of elements that is contiguous in both regions. Indices are
/// relative to the flat_begin of each region. Both regions must be in the same global tensor.
using RunVisitor = std::function<void(i64 from, i64 to, i64 count)>;
void for_each_run(const Region& from, const Region& to, const RunVisitor& f);

}  // namespace mcpp
