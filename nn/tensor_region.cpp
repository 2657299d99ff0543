#include "nn/tensor_region.h"

#include <algorithm>

#include "base/integer_math.h"

namespace mcpp {
namespace {

/// Appends elements [begin, end) of the sub-box `rest` to `out` as boxes. `rest` has size 1 along the axes before
/// `axis`.
void decompose(const Box& rest, std::size_t axis, i64 begin, i64 end, std::vector<Box>& out) {
  if (begin >= end) return;
  const i64 all = numel(rest.shape);
  if (begin == 0 && end == all) {
    out.push_back(rest);
    return;
  }
  const i64 row = all / rest.shape[axis];  // elements of one row of this axis
  const auto add_rows = [&](i64 first, i64 count, i64 from, i64 to) {
    Box rows = rest;
    rows.offset[axis] += first;
    rows.shape[axis] = count;
    decompose(rows, axis + 1, from, to, out);
  };
  const i64 first = begin / row, last = (end - 1) / row;
  if (first == last) return add_rows(first, 1, begin % row, end - first * row);
  const i64 full_begin = ceil_div(begin, row), full_end = end / row;
  if (first < full_begin) add_rows(first, 1, begin % row, row);
  if (full_begin < full_end) add_rows(full_begin, full_end - full_begin, 0, (full_end - full_begin) * row);
  if (full_end <= last) add_rows(last, 1, 0, end - last * row);
}

/// Returns the row-major strides of `shape`.
Shape strides_of(const Shape& shape) {
  Shape strides(shape.size(), 1);
  for (std::size_t i = shape.size(); i-- > 1;) strides[i - 1] = strides[i] * shape[i];
  return strides;
}

/// Returns the row-major index in `box` of the first element of `part`.
i64 index_in(const Box& box, const Box& part, const Shape& strides) {
  i64 index = 0;
  for (std::size_t i = 0; i < strides.size(); ++i) index += (part.offset[i] - box.offset[i]) * strides[i];
  return index;
}

/// Implements for_each_run for one common box of two regions.
void visit_box(const Box& part, const Region& from, const Region& to, const RunVisitor& f) {
  const Shape from_strides = strides_of(from.box.shape), to_strides = strides_of(to.box.shape);
  i64 from_at = index_in(from.box, part, from_strides) - from.flat_begin;
  i64 to_at = index_in(to.box, part, to_strides) - to.flat_begin;

  // Trailing axes that the part covers fully in both boxes join the run; the `outer` axes before them are looped over.
  std::size_t outer = part.shape.size();
  i64 run = 1;
  bool is_contiguous = true;
  while (outer > 0 && is_contiguous) {
    --outer;
    run *= part.shape[outer];
    is_contiguous = part.shape[outer] == from.box.shape[outer] && part.shape[outer] == to.box.shape[outer];
  }
  Shape counter(outer, 0);
  while (true) {
    f(from_at, to_at, run);
    std::size_t axis = outer;
    while (axis > 0) {
      --axis;
      from_at += from_strides[axis], to_at += to_strides[axis];
      if (++counter[axis] < part.shape[axis]) break;
      from_at -= part.shape[axis] * from_strides[axis], to_at -= part.shape[axis] * to_strides[axis];
      counter[axis] = 0;
      if (axis == 0) return;
    }
    if (outer == 0) return;
  }
}

}  // namespace

Region full_region(Box box) {
  const i64 count = numel(box.shape);
  return {.box = std::move(box), .flat_begin = 0, .flat_end = count};
}

std::string find_defect(const Region& region) {
  const auto& [global, offset, shape] = region.box;
  if (offset.size() != global.size() || shape.size() != global.size()) {
    return str("its global shape ", global, ", offset ", offset, " and shape ", shape, " differ in rank");
  }
  i64 count = 1, global_count = 1;
  for (std::size_t i = 0; i < global.size(); ++i) {
    // Compares by subtraction, because untrusted values may overflow offset + shape.
    if (global[i] < 0 || offset[i] < 0 || shape[i] < 0 || offset[i] > global[i] || shape[i] > global[i] - offset[i]) {
      return str("shape ", shape, " at ", offset, " does not lie in ", global);
    }
    if (__builtin_mul_overflow(global_count, global[i], &global_count) || global_count > (i64{1} << 56)) {
      return str("global shape ", global, " is too large: it has more than 2^56 elements");
    }
    count *= shape[i];
  }
  if (region.flat_begin < 0 || region.flat_begin > region.flat_end || region.flat_end > count) {
    return str("elements ", region.flat_begin, " to ", region.flat_end, " do not lie in a box of ", count);
  }
  return {};
}

std::vector<Box> boxes_of(const Region& region) {
  std::vector<Box> boxes;
  decompose(region.box, 0, region.flat_begin, region.flat_end, boxes);
  return boxes;
}

std::optional<Box> intersection(const Box& a, const Box& b) {
  Box common = a;
  for (std::size_t i = 0; i < a.shape.size(); ++i) {
    common.offset[i] = std::max(a.offset[i], b.offset[i]);
    common.shape[i] = std::min(a.offset[i] + a.shape[i], b.offset[i] + b.shape[i]) - common.offset[i];
    if (common.shape[i] <= 0) return std::nullopt;
  }
  return common;
}

i64 overlap(const Region& a, const Region& b) {
  i64 count = 0;
  if (!intersection(a.box, b.box)) return 0;
  for (const Box& x : boxes_of(a)) {
    for (const Box& y : boxes_of(b)) {
      if (const auto common = intersection(x, y)) count += numel(common->shape);
    }
  }
  return count;
}

void for_each_run(const Region& from, const Region& to, const RunVisitor& f) {
  if (!intersection(from.box, to.box)) return;
  const std::vector<Box> to_boxes = boxes_of(to);
  for (const Box& x : boxes_of(from)) {
    for (const Box& y : to_boxes) {
      if (const auto common = intersection(x, y)) visit_box(*common, from, to, f);
    }
  }
}

}  // namespace mcpp
