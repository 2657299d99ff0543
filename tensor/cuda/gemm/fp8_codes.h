// Conversion of tensors to fp8, one byte per element, for cuBLASLt GEMMs.
#pragma once
#include "tensor/cuda/device.h"
#include "tensor/ops/low_precision/fp8.h"

namespace mcpp {

/// Destination of an fp8 matrix on the GPU.
struct Fp8Codes {
  u8* codes;
  float* unscale;  ///< factor that restores the values
};

/// Converts x, a bf16 matrix [rows, columns], in row-major order, or `transposed` in column-major order, for which both
/// sizes must be multiples of 4.
void write_fp8_codes(const Tensor& x, const Fp8Scale& scale, bool transposed, const Fp8Codes& to);

}  // namespace mcpp
