// Stores rows of fp32 sums as fp32 or bf16. Include only in files compiled for AVX512_BF16.
#pragma once
#include "tensor/cpu/simd/avx512.h"
#include "tensor/dtype.h"

// GCC 12 warns about the undefined register used inside intrinsics (GCC bug 105593).
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512bf16")

namespace mcpp::kernel {

/// Computes c = left | right + beta c for the first `columns` columns; beta is 0 or 1.
inline void store_row(float* c, i64 columns, float beta, __m512 left, __m512 right) {
  const __mmask16 l = first16(columns), r = first16(columns - 16);
  if (beta != 0) {
    left = _mm512_add_ps(left, _mm512_maskz_loadu_ps(l, c));
    right = _mm512_add_ps(right, _mm512_maskz_loadu_ps(r, c + 16));
  }
  _mm512_mask_storeu_ps(c, l, left);
  _mm512_mask_storeu_ps(c + 16, r, right);
}

inline __m512 widen(__m256i x) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16));
}

inline void store_row(BFloat16* c, i64 columns, float beta, __m512 left, __m512 right) {
  if (beta != 0) {
    left = _mm512_add_ps(left, widen(_mm256_maskz_loadu_epi16(first16(columns), c)));
    right = _mm512_add_ps(right, widen(_mm256_maskz_loadu_epi16(first16(columns - 16), c + 16)));
  }
  _mm512_mask_storeu_epi16(c, first32(columns), (__m512i)_mm512_cvtne2ps_pbh(right, left));
}

}  // namespace mcpp::kernel

#pragma GCC pop_options
#pragma GCC diagnostic pop
