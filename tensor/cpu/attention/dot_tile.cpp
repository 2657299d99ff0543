#include "tensor/cpu/attention/bf16_tile.h"

// GCC 12 warns about the undefined register used inside intrinsics (GCC bug 105593).
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"

#include <immintrin.h>

#include "tensor/cpu/attention/attention_problem.h"

#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512bf16")

namespace mcpp::kernel {
namespace {

constexpr i64 kLanes = 16;
constexpr int kRows = 8, kVectors = 2;  // size of the block of sums in registers

/// Returns the number of words, each with two neighbors along k.
i64 words(i64 elements) {
  return elements / 2;
}

/// Computes C[kRows, 32].
void multiply_rows(const Bf16Operands& x, i64 k, bool accumulate) {
  __m512 sums[kRows][kVectors];
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i) {
    for (int j = 0; j < kVectors; ++j)
      sums[i][j] = accumulate ? _mm512_loadu_ps(x.c + i * x.ldc + j * kLanes) : _mm512_setzero_ps();
  }
  const i32* a = reinterpret_cast<const i32*>(x.a);
  const BFloat16* b = x.b;
  for (i64 pair = 0; pair < words(k); ++pair, ++a, b += x.ldb) {
    const auto left = (__m512bh)_mm512_loadu_si512(b), right = (__m512bh)_mm512_loadu_si512(b + 2 * kLanes);
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i) {
      const auto factor = (__m512bh)_mm512_set1_epi32(a[i * words(x.lda)]);
      sums[i][0] = _mm512_dpbf16_ps(sums[i][0], factor, left);
      sums[i][1] = _mm512_dpbf16_ps(sums[i][1], factor, right);
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i) {
    for (int j = 0; j < kVectors; ++j) _mm512_storeu_ps(x.c + i * x.ldc + j * kLanes, sums[i][j]);
  }
}

}  // namespace

void dot_multiply(const Bf16Operands& x, i64 m, i64 n, i64 k, bool accumulate) {
  for (i64 j = 0; j < n; j += kVectors * kLanes) {
    for (i64 i = 0; i < m; i += kRows) {
      multiply_rows({x.a + i * x.lda, x.lda, x.b + 2 * j, x.ldb, x.c + i * x.ldc + j, x.ldc}, k, accumulate);
    }
  }
}

void round_rows(const float* tile, BFloat16* dst) {
  for (i64 i = 0; i < kTile * kTile; i += 32) {
    const __m512bh rounded = _mm512_cvtne2ps_pbh(_mm512_loadu_ps(tile + i + 16), _mm512_loadu_ps(tile + i));
    _mm512_storeu_si512(dst + i, reinterpret_cast<__m512i>(rounded));
  }
}

void round_row_pairs(const float* tile, BFloat16* dst) {
  // Permutes 16 elements of the first row, then 16 of the second, to pairs.
  const __m512i order = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6, 21,
                                         5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
  for (i64 r = 0; r < kTile; r += 2, tile += 2 * kTile) {
    for (i64 i = 0; i < kTile; i += 16, dst += 32) {
      const __m512bh rounded = _mm512_cvtne2ps_pbh(_mm512_loadu_ps(tile + kTile + i), _mm512_loadu_ps(tile + i));
      _mm512_storeu_si512(dst, _mm512_permutexvar_epi16(order, reinterpret_cast<__m512i>(rounded)));
    }
  }
}

}  // namespace mcpp::kernel
#pragma GCC pop_options

#pragma GCC diagnostic pop
