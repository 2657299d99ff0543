#include "tensor/cpu/amx.h"

#include "base/check.h"

#if defined(__x86_64__) && defined(__linux__)

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512bf16,amx-tile,amx-bf16")
#include <immintrin.h>

namespace mcpp::kernel::amx {
namespace {

constexpr i64 kEdge = 16;  // rows of a tile register; each is 64 bytes: 16 fp32 or 32 bf16

// The intrinsics of GCC 12 do not tell the compiler which memory they read.
void finish_stores() {
  asm volatile("" ::: "memory");
}

bool processor_has_it() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return false;
  constexpr unsigned kAvx512 = 1u << 16 | 1u << 30 | 1u << 31;  // F, BW, VL
  constexpr unsigned kAmx = 1u << 22 | 1u << 24;                // BF16, TILE
  if ((b & kAvx512) != kAvx512 || (d & kAmx) != kAmx) return false;
  return __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a & 1u << 5) != 0;  // AVX512_BF16
}

// Linux saves the tile registers only for processes that ask.
bool system_allows_it() {
  constexpr long kRequestPermission = 0x1023, kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

// C[32, 32] in four tile registers.
void multiply_32x32(const Operands& x, i64 k, bool accumulate) {
  const i64 lda = x.lda * 2, ldb = x.ldb * 2, ldc = x.ldc * 4;  // in bytes
  float* c1 = x.c + kEdge * x.ldc;
  if (accumulate) {
    _tile_loadd(0, x.c, ldc);
    _tile_loadd(1, x.c + kEdge, ldc);
    _tile_loadd(2, c1, ldc);
    _tile_loadd(3, c1 + kEdge, ldc);
  } else {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  }
  const BFloat16* a = x.a;
  const BFloat16* b = x.b;
  for (i64 p = 0; p < k; p += 2 * kEdge, a += 2 * kEdge, b += kEdge * x.ldb) {
    _tile_loadd(4, a, lda);
    _tile_loadd(6, b, ldb);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, b + 2 * kEdge, ldb);
    _tile_dpbf16ps(1, 4, 7);
    _tile_loadd(5, a + kEdge * x.lda, lda);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  _tile_stored(0, x.c, ldc);
  _tile_stored(1, x.c + kEdge, ldc);
  _tile_stored(2, c1, ldc);
  _tile_stored(3, c1 + kEdge, ldc);
}

}  // namespace

bool available() {
  static const bool result = processor_has_it() && system_allows_it();
  return result;
}

TileState::TileState() {
  struct alignas(64) {
    u8 palette = 1, start_row = 0, reserved[14]{};
    u16 bytes_per_row[16]{};
    u8 rows[16]{};
  } config;
  for (int tile = 0; tile < 8; ++tile) config.bytes_per_row[tile] = 64, config.rows[tile] = kEdge;
  finish_stores();
  asm volatile("ldtilecfg %0" ::"m"(config));
}

TileState::~TileState() {
  _tile_release();
}

void multiply(const Operands& x, i64 m, i64 n, i64 k, bool accumulate) {
  finish_stores();
  for (i64 j = 0; j < n; j += 2 * kEdge) {
    for (i64 i = 0; i < m; i += 2 * kEdge) {
      multiply_32x32({x.a + i * x.lda, x.lda, x.b + 2 * j, x.ldb, x.c + i * x.ldc + j, x.ldc}, k, accumulate);
    }
  }
}

void round_rows(const float* tile, BFloat16* dst) {
  for (i64 i = 0; i < 64 * 64; i += 32) {
    const __m512bh rounded = _mm512_cvtne2ps_pbh(_mm512_loadu_ps(tile + i + 16), _mm512_loadu_ps(tile + i));
    _mm512_storeu_si512(dst + i, reinterpret_cast<__m512i>(rounded));
  }
}

void round_row_pairs(const float* tile, BFloat16* dst) {
  // From 16 numbers of the first row, then 16 of the second, to pairs.
  const __m512i order = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6, 21,
                                         5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
  for (i64 r = 0; r < 64; r += 2, tile += 128) {
    for (i64 i = 0; i < 64; i += 16, dst += 32) {
      const __m512bh rounded = _mm512_cvtne2ps_pbh(_mm512_loadu_ps(tile + 64 + i), _mm512_loadu_ps(tile + i));
      _mm512_storeu_si512(dst, _mm512_permutexvar_epi16(order, reinterpret_cast<__m512i>(rounded)));
    }
  }
}

}  // namespace mcpp::kernel::amx
#pragma GCC pop_options

#else

namespace mcpp::kernel::amx {

bool available() {
  return false;
}

namespace {
[[noreturn]] void unavailable() {
  fail(ExitCode::Internal, "AMX was used on a processor without it");
}
}  // namespace

TileState::TileState() {
  unavailable();
}
TileState::~TileState() = default;
void multiply(const Operands&, i64, i64, i64, bool) {
  unavailable();
}
void round_rows(const float*, BFloat16*) {
  unavailable();
}
void round_row_pairs(const float*, BFloat16*) {
  unavailable();
}

}  // namespace mcpp::kernel::amx
#endif
