// Predicted time of matrix products.
#pragma once
#include "plan/hardware/hardware.h"

namespace mcpp {

/// Returns the seconds of a product on a device. `output_bytes`: bytes accessed per element of the result, including
/// reads. Uses the measured rates if there are any. Otherwise efficiency follows from the shape: tiles that do not fill
/// all cores (with split-k where that helps), a ramp at the beginning and end of each tile, and the bytes of operands
/// and result, which bound small and thin products.
double product_seconds(const Hardware& hardware, ProductType type, const ProductShape& shape, double output_bytes,
                       ProductPass pass = ProductPass::Forward);

}  // namespace mcpp
