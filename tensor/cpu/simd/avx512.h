// Helpers for kernels in AVX-512 intrinsics. Include only in files compiled for them.
#pragma once
#include <immintrin.h>

#include "base/types.h"
#include "tensor/dtype.h"

#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512vl")

namespace mcpp::kernel {

/// Return masks of the first n lanes; n may be outside of [0, lanes].
inline __mmask32 first32(i64 n) {
  return n >= 32 ? 0xFFFFFFFFu : n <= 0 ? 0u : (1u << n) - 1;
}
inline __mmask16 first16(i64 n) {
  return static_cast<__mmask16>(first32(n < 16 ? n : 16));
}

/// Transposes 16 x 16 elements of 32 bits.
inline void transpose16(__m512i (&r)[16]) {
  __m512i t[16];
  for (int i = 0; i < 8; ++i) {
    t[2 * i] = _mm512_unpacklo_epi32(r[2 * i], r[2 * i + 1]);
    t[2 * i + 1] = _mm512_unpackhi_epi32(r[2 * i], r[2 * i + 1]);
  }
  for (int i = 0; i < 4; ++i) {
    r[4 * i] = _mm512_unpacklo_epi64(t[4 * i], t[4 * i + 2]);
    r[4 * i + 1] = _mm512_unpackhi_epi64(t[4 * i], t[4 * i + 2]);
    r[4 * i + 2] = _mm512_unpacklo_epi64(t[4 * i + 1], t[4 * i + 3]);
    r[4 * i + 3] = _mm512_unpackhi_epi64(t[4 * i + 1], t[4 * i + 3]);
  }
  for (int i = 0; i < 4; ++i) {
    t[i] = _mm512_shuffle_i32x4(r[i], r[4 + i], 0x88);
    t[4 + i] = _mm512_shuffle_i32x4(r[i], r[4 + i], 0xdd);
    t[8 + i] = _mm512_shuffle_i32x4(r[8 + i], r[12 + i], 0x88);
    t[12 + i] = _mm512_shuffle_i32x4(r[8 + i], r[12 + i], 0xdd);
  }
  for (int i = 0; i < 4; ++i) {
    r[i] = _mm512_shuffle_i32x4(t[i], t[8 + i], 0x88);
    r[8 + i] = _mm512_shuffle_i32x4(t[i], t[8 + i], 0xdd);
    r[4 + i] = _mm512_shuffle_i32x4(t[4 + i], t[12 + i], 0x88);
    r[12 + i] = _mm512_shuffle_i32x4(t[4 + i], t[12 + i], 0xdd);
  }
}

}  // namespace mcpp::kernel

#pragma GCC pop_options

// Stores rows of fp32 sums as fp32 or bf16. Include only in files compiled for AVX512_BF16.

// GCC 12 warns about the undefined register used inside intrinsics (GCC bug 105593).
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512bf16")

namespace mcpp::kernel {

/// Computes c = concat(left, right) + beta c for the first `columns` columns; beta is 0 or 1.
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
