// How long matrix products take.
#pragma once
#include "plan/hardware.h"

namespace mcpp {

/// [m, k] x [k, n] -> [m, n], `batch` times.
struct ProductShape {
  i64 m = 1, n = 1, k = 1;
  i64 batch = 1;

  double flops() const {
    return 2 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k) * static_cast<double>(batch);
  }
};

/// Seconds on a device. `output_bytes`: per element of the result, read ones included. Efficiency follows from the
/// shape: tiles that do not fill all cores (split over k where that helps), a ramp at the beginning and end of each
/// tile, and the bytes of operands and result, which bound small and thin products.
double product_seconds(const Hardware& hardware, ProductType type, const ProductShape& shape, double output_bytes);

}  // namespace mcpp
