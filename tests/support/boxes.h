// What a box of a global tensor holds.
#pragma once
#include "tensor/param.h"
#include "tests/support/tensors.h"

namespace mcpp::test {

/// The numbers of `whole`, of shape box.global, that lie in the box.
inline Numbers part_of(const Numbers& whole, const Box& box) {
  Numbers part(static_cast<std::size_t>(numel(box.shape)));
  for (std::size_t i = 0; i < part.size(); ++i) {
    i64 rest = static_cast<i64>(i), index = 0, stride = 1;
    for (std::size_t axis = box.shape.size(); axis-- > 0;) {
      index += (rest % box.shape[axis] + box.offset[axis]) * stride;
      rest /= box.shape[axis];
      stride *= box.global[axis];
    }
    part[i] = whole[static_cast<std::size_t>(index)];
  }
  return part;
}

/// Each number within `relative` times the largest of the tensor that `expected` is a part of.
inline void expect_part(const Tensor& actual, const Numbers& whole, const Box& box, double relative,
                        const std::string& what) {
  double largest = 0;
  for (const double x : whole) largest = std::max(largest, std::abs(x));
  expect_close(actual, part_of(whole, box), relative, largest, what);
}

}  // namespace mcpp::test
