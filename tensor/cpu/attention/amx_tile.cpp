#include "tensor/cpu/attention/amx_tile.h"

// GCC 12 takes the undefined register that intrinsics start from for a mistake (its bug 105593).
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"

#include <immintrin.h>

#include "tensor/cpu/attention/attention_problem.h"

#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512bf16,amx-tile,amx-bf16")

namespace mcpp::kernel::amx {
namespace {

constexpr i64 kEdge = 16;  // rows of a tile register; each is 64 bytes: 16 fp32 or 32 bf16

// C[32, 32] in four tile registers.
void multiply_32x32(const Operands& x, i64 k, bool accumulate) {
  const i64 lda = x.lda * 2, ldb = x.ldb * 2, ldc = x.ldc * 4;  // in bytes
  float* lower = x.c + kEdge * x.ldc;
  if (accumulate) {
    _tile_loadd(0, x.c, ldc);
    _tile_loadd(1, x.c + kEdge, ldc);
    _tile_loadd(2, lower, ldc);
    _tile_loadd(3, lower + kEdge, ldc);
  } else {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  }
  const BFloat16 *a = x.a, *b = x.b;
  for (i64 p = 0; p < k; p += 2 * kEdge, a += 2 * kEdge, b += kEdge * x.ldb) {
    _tile_loadd(6, b, ldb);
    _tile_loadd(4, a, lda);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, b + 2 * kEdge, ldb);
    _tile_dpbf16ps(1, 4, 7);
    _tile_loadd(5, a + kEdge * x.lda, lda);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  _tile_stored(0, x.c, ldc);
  _tile_stored(1, x.c + kEdge, ldc);
  _tile_stored(2, lower, ldc);
  _tile_stored(3, lower + kEdge, ldc);
}

}  // namespace

void multiply(const Operands& x, i64 m, i64 n, i64 k, bool accumulate) {
  asm volatile("" ::: "memory");  // GCC's tile loads do not say that they read memory
  for (i64 j = 0; j < n; j += 2 * kEdge) {
    for (i64 i = 0; i < m; i += 2 * kEdge) {
      multiply_32x32({x.a + i * x.lda, x.lda, x.b + 2 * j, x.ldb, x.c + i * x.ldc + j, x.ldc}, k, accumulate);
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
  // From 16 numbers of the first row, then 16 of the second, to pairs.
  const __m512i order = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6, 21,
                                         5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
  for (i64 r = 0; r < kTile; r += 2, tile += 2 * kTile) {
    for (i64 i = 0; i < kTile; i += 16, dst += 32) {
      const __m512bh rounded = _mm512_cvtne2ps_pbh(_mm512_loadu_ps(tile + kTile + i), _mm512_loadu_ps(tile + i));
      _mm512_storeu_si512(dst, _mm512_permutexvar_epi16(order, reinterpret_cast<__m512i>(rounded)));
    }
  }
}

}  // namespace mcpp::kernel::amx
#pragma GCC pop_options
