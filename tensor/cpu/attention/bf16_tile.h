// Products of bf16 matrices that lie in the cache, with strides and fp32 sums: what tiled attention needs. Everything
// here may only be called where the processor has AVX512_BF16, amx_multiply() where amx_available() (amx.h).
#pragma once
#include "tensor/cpu/simd/amx.h"

namespace mcpp::kernel {

/// Element (i, j) of A and C is at [i * ld + j]. B holds pairs of rows interleaved: element (k, j) is at
/// [k / 2 * ldb + 2 * j + k % 2].
struct Bf16Operands {
  const BFloat16* a;
  i64 lda;
  const BFloat16* b;
  i64 ldb;
  float* c;
  i64 ldc;
};
/// C[m, n] = A B, or C += A B; m, n and k are multiples of 32. Needs a TileSession on this thread.
void amx_multiply(const Bf16Operands& x, i64 m, i64 n, i64 k, bool accumulate);
/// The same on the vector units, by dot products of pairs.
void dot_multiply(const Bf16Operands& x, i64 m, i64 n, i64 k, bool accumulate);

/// dst = a 64 x 64 tile rounded to bf16, as left operand (rows) or as right operand (pairs of rows interleaved).
void round_rows(const float* tile, BFloat16* dst);
void round_row_pairs(const float* tile, BFloat16* dst);

}  // namespace mcpp::kernel
