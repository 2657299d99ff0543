#include "tensor/cpu/attention/bf16_tile.h"

// GCC 12 warns about the undefined register used inside intrinsics (GCC bug 105593).
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"

#include <immintrin.h>

#pragma GCC push_options
#pragma GCC target("avx512f,amx-tile,amx-bf16")

namespace mcpp::kernel {
namespace {

constexpr i64 kTileRows = 16;  // rows of a tile register; each is 64 bytes: 16 fp32 or 32 bf16

// Computes C[32, 32] in four tile registers.
void multiply_32x32(const Bf16Operands& x, i64 k, bool accumulate) {
  const i64 lda = x.lda * 2, ldb = x.ldb * 2, ldc = x.ldc * 4;  // in bytes
  float* lower = x.c + kTileRows * x.ldc;
  if (accumulate) {
    _tile_loadd(0, x.c, ldc);
    _tile_loadd(1, x.c + kTileRows, ldc);
    _tile_loadd(2, lower, ldc);
    _tile_loadd(3, lower + kTileRows, ldc);
  } else {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  }
  const BFloat16 *a = x.a, *b = x.b;
  for (i64 p = 0; p < k; p += 2 * kTileRows, a += 2 * kTileRows, b += kTileRows * x.ldb) {
    _tile_loadd(6, b, ldb);
    _tile_loadd(4, a, lda);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, b + 2 * kTileRows, ldb);
    _tile_dpbf16ps(1, 4, 7);
    _tile_loadd(5, a + kTileRows * x.lda, lda);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  _tile_stored(0, x.c, ldc);
  _tile_stored(1, x.c + kTileRows, ldc);
  _tile_stored(2, lower, ldc);
  _tile_stored(3, lower + kTileRows, ldc);
}

}  // namespace

void amx_multiply(const Bf16Operands& x, i64 m, i64 n, i64 k, bool accumulate) {
  asm volatile("" ::: "memory");  // GCC does not mark tile loads as reading memory
  for (i64 j = 0; j < n; j += 2 * kTileRows) {
    for (i64 i = 0; i < m; i += 2 * kTileRows) {
      multiply_32x32({x.a + i * x.lda, x.lda, x.b + 2 * j, x.ldb, x.c + i * x.ldc + j, x.ldc}, k, accumulate);
    }
  }
}

}  // namespace mcpp::kernel
#pragma GCC pop_options

#pragma GCC diagnostic pop
