// Peak rates of GPUs according to their data sheets.
#pragma once
#include <string_view>

#include "tensor/dtype.h"

namespace mcpp {

/// Returns the rate of dense matrix products with fp32 accumulation in FLOP/s: on tensor cores for bf16, fp64, and fp32
/// with `allow_tf32`, otherwise without. `device_name` is the driver's name of the GPU. Returns 0 for unknown devices.
double rated_flops(std::string_view device_name, DType dtype, bool allow_tf32);

}  // namespace mcpp
