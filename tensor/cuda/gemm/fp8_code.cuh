// Conversion of single values to fp8 and back in kernels.
#pragma once
#include <cuda_fp8.h>

#include "tensor/cuda/launch.cuh"
#include "tensor/ops/low_precision/fp8.h"

namespace mcpp {

constexpr __nv_fp8_interpretation_t interpretation(Fp8Format format) {
  return format == Fp8Format::E4M3 ? __NV_E4M3 : __NV_E5M2;
}

/// Rounds to the nearest code, saturating at the maximum. The instruction would saturate infinity too, so it is
/// replaced by NaN.
__device__ __forceinline__ u8 to_fp8_code(float x, Fp8Format format) {
  return __nv_cvt_float_to_fp8(isinf(x) ? NAN : x, __NV_SATFINITE, interpretation(format));
}

__device__ __forceinline__ float from_fp8_code(u8 code, Fp8Format format) {
  return widen(static_cast<__half>(__nv_cvt_fp8_to_halfraw(code, interpretation(format))));
}

}  // namespace mcpp
