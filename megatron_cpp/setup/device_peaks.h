// What data sheets promise of GPUs.
#pragma once
#include <string_view>

#include "tensor/dtype.h"

namespace mcpp {

/// Dense matrix products of a GPU in FLOP/s, sums in fp32, by the vendor's data sheet: on tensor cores for bf16, for
/// fp32 with `allow_tf32`, and for fp64; on the others for fp32 without. `device_name` as the driver gives it. 0 when
/// it is not known.
double rated_flops(std::string_view device_name, DType dtype, bool allow_tf32);

}  // namespace mcpp
