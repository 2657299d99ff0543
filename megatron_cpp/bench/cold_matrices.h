// Operands of products as a step finds them.
#pragma once
#include <utility>

#include "base/rounding.h"
#include "tensor/tensor.h"

namespace mcpp {

/// What the layer before has just made is warm in a step; weights, what forward kept and sums of gradients were last
/// touched when all other layers were not yet. So many bytes of them, taken in turn, are more than a rank's part of the
/// caches holds.
constexpr i64 kColdBytes = 64 << 20;

/// Matrices that lie one after another in more memory than caches hold: each is cold when its turn comes again.
class ColdMatrices {
 public:
  ColdMatrices() = default;
  /// `numbers` are at least those of the largest matrix.
  explicit ColdMatrices(Tensor numbers) : numbers_(std::move(numbers)) {}

  Tensor next(i64 rows, i64 columns) {
    constexpr i64 kLine = 64;  // elements: at least one of a cache
    const i64 count = rows * columns;
    if (next_ + count > numbers_.numel()) next_ = 0;
    const Tensor matrix = numbers_.flat(next_, count).view({rows, columns});
    next_ += round_up(count, kLine);
    return matrix;
  }

 private:
  Tensor numbers_;
  i64 next_ = 0;
};

}  // namespace mcpp
