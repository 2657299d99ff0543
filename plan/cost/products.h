// How long matrix products take.
#pragma once
#include "plan/hardware/hardware.h"

namespace mcpp {

/// Seconds on a device. `output_bytes`: per element of the result, read ones included. Efficiency follows from the
/// shape: tiles that do not fill all cores (split over k where that helps), a ramp at the beginning and end of each
/// tile, and the bytes of operands and result, which bound small and thin products. Or as it was measured.
double product_seconds(const Hardware& hardware, ProductType type, const ProductShape& shape, double output_bytes,
                       ProductPass pass = ProductPass::Forward);

}  // namespace mcpp
