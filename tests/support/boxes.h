// Elements of a box of a global tensor.
#pragma once
#include "nn/param.h"
#include "tests/support/tensors.h"

namespace mcpp::test {

/// Returns the index in the global tensor of element `i` of a box.
inline i64 global_index(const Box& box, i64 i) {
  i64 index = 0, stride = 1;
  for (std::size_t axis = box.shape.size(); axis-- > 0;) {
    index += (box.offset[axis] + i % box.shape[axis]) * stride;
    i /= box.shape[axis];
    stride *= box.global[axis];
  }
  return index;
}

/// Returns the elements of `full`, of shape box.global, that are in the box.
inline Numbers part_of(const Numbers& full, const Box& box) {
  Numbers part(static_cast<std::size_t>(numel(box.shape)));
  for (std::size_t i = 0; i < part.size(); ++i)
    part[i] = full[static_cast<std::size_t>(global_index(box, static_cast<i64>(i)))];
  return part;
}

/// Checks that each element is within `relative` times the largest value of the tensor of which `expected` is a part.
inline void expect_part(const Tensor& actual, const Numbers& full, const Box& box, double relative,
                        const std::string& what) {
  double largest = 0;
  for (const double x : full) largest = std::max(largest, std::abs(x));
  expect_close(actual, part_of(full, box), relative, largest, what);
}

}  // namespace mcpp::test
