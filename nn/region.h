// Which elements of a global tensor somebody holds: a box, and of the box's row-major elements a flat range. Model
// weights are whole boxes; an optimizer that is split over data-parallel ranks holds flat ranges of boxes. Copying
// between any two regions is a list of contiguous runs: this is what lets any layout load any checkpoint.
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
  bool is_whole_box() const { return flat_begin == 0 && flat_end == mcpp::numel(box.shape); }
};

/// All of `box`.
Region whole(Box box);

/// Empty when box and range are sound (equal ranks, sizes not negative, inside the global shape), else what is wrong.
std::string defect_of(const Region& region);

/// The region as at most 2 * rank - 1 disjoint boxes, in row-major order.
std::vector<Box> boxes_of(const Region& region);

/// The common part; std::nullopt when there is none. Both in the same global tensor.
std::optional<Box> intersection(const Box& a, const Box& b);

/// Elements that both hold. Both in the same global tensor.
i64 overlap(const Region& a, const Region& b);

/// Calls f(from_element, to_element, count) for each run of elements that lie one after another in both; the indices
/// count from the flat_begin of each. Both in the same global tensor.
using RunVisitor = std::function<void(i64 from, i64 to, i64 count)>;
void for_each_run(const Region& from, const Region& to, const RunVisitor& f);

}  // namespace mcpp
