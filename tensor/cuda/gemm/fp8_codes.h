// Tensors as fp8, a byte for each number, for the products of cuBLASLt.
#pragma once
#include "tensor/cuda/device.h"
#include "tensor/ops/narrow/fp8.h"

namespace mcpp {

/// Where a matrix in fp8 goes, on the GPU.
struct Fp8Codes {
  u8* codes;
  float* unscale;  ///< by what they are multiplied to be the numbers again
};

/// x, a matrix of bf16 [rows, columns], row by row, or `transposed`, column by column, for which both are multiples
/// of 4.
void write_fp8_codes(const Tensor& x, const Fp8Scale& scale, bool transposed, const Fp8Codes& to);

}  // namespace mcpp
