// The matrix products of a layer, as sizes.
#pragma once
#include "base/types.h"

namespace mcpp {

/// [m, k] x [k, n] -> [m, n], `batch` times.
struct ProductShape {
  i64 m = 1, n = 1, k = 1;
  i64 batch = 1;

  double flops() const {
    return 2 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k) * static_cast<double>(batch);
  }
};

/// Which of the three of a weight. m are rows of tokens, but of the last, whose depth they are.
enum class ProductPass : u8 { Forward, InputGradient, WeightGradient };

}  // namespace mcpp
