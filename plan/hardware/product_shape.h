// Shapes of a layer's matrix products.
#pragma once
#include "base/types.h"

namespace mcpp {

/// Shape of `batch` products [m, k] x [k, n] -> [m, n].
struct ProductShape {
  i64 m = 1, n = 1, k = 1;
  i64 batch = 1;

  double flops() const {
    return 2 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k) * static_cast<double>(batch);
  }
};

/// One of the three products of a weight. Tokens are the dimension m, except in WeightGradient, where they are k.
enum class ProductPass : u8 { Forward, InputGradient, WeightGradient };

}  // namespace mcpp
