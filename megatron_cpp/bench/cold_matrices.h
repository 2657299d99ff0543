// Operands of matrix products with a cache state as in a training step.
#pragma once
#include <utility>

#include "base/integer_math.h"
#include "tensor/tensor.h"

namespace mcpp {

/// Working set for cold operands. The previous layer's output is warm in a step, while weights, saved activations and
/// gradient sums were last used before all other layers. Cycling through this many bytes exceeds a rank's share of the
/// caches.
constexpr i64 kColdBytes = 64 << 20;

/// Matrices laid out consecutively in more memory than the caches hold; each is cold when it is used again.
class ColdMatrices {
 public:
  ColdMatrices() = default;
  /// `numbers` must hold at least the largest matrix.
  explicit ColdMatrices(Tensor numbers) : numbers_(std::move(numbers)) {}

  Tensor next(i64 rows, i64 columns) {
    constexpr i64 kLine = 64;  // elements; at least a cache line
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
