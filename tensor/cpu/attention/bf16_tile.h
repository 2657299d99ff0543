// GEMMs of strided bf16 matrices that fit in the cache, with fp32 sums, for tiled attention. Requires AVX512_BF16;
// amx_multiply() also requires amx_available() (amx.h).
#pragma once
#include "tensor/cpu/simd/amx.h"

namespace mcpp::kernel {

/// Operands. Element (i, j) of A and C is at [i * ld + j]. B holds interleaved pairs of rows: element (k, j) is at [k /
/// 2 * ldb + 2 * j + k % 2].
struct Bf16Operands {
  const BFloat16* a;
  i64 lda;
  const BFloat16* b;
  i64 ldb;
  float* c;
  i64 ldc;
};
/// Computes C[m, n] = A B, or C += A B; m, n and k are multiples of 32. Needs a TileSession on this thread.
void amx_multiply(const Bf16Operands& x, i64 m, i64 n, i64 k, bool accumulate);
/// Computes the same GEMM as amx_multiply() on the vector units, with dot products of pairs.
void dot_multiply(const Bf16Operands& x, i64 m, i64 n, i64 k, bool accumulate);

/// Rounds a 64 x 64 tile to bf16 into dst, as left operand (rows) or as right operand (interleaved pairs of rows).
void round_rows(const float* tile, BFloat16* dst);
void round_row_pairs(const float* tile, BFloat16* dst);

}  // namespace mcpp::kernel
