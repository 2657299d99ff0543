#include "tensor/cpu/simd/amx.h"

// GCC 12 warns about the undefined register used inside intrinsics (GCC bug 105593).
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"

#include <cpuid.h>
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <dnnl.hpp>

#include "tensor/cpu/simd/avx512.h"
#include "tensor/cpu/simd/bf16_path.h"

namespace mcpp::kernel {
namespace {

bool cpu_has_amx_bf16() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  constexpr unsigned kAmxBf16 = 1u << 22, kAmxTile = 1u << 24;
  return __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) && (edx & kAmxBf16) && (edx & kAmxTile);
}

// Requests permission for the tile state, which Linux disables by default. Repeated requests are harmless.
bool system_permits_tiles() {
  constexpr long kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

}  // namespace

bool amx_available() {
  return is_isa_available(dnnl::cpu_isa::avx512_core_amx) && cpu_has_amx_bf16() && system_permits_tiles();
}

}  // namespace mcpp::kernel

// Only the functions below are compiled for AMX; they contain nothing that another file could share.
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512bf16,amx-tile,amx-bf16")

namespace mcpp::kernel {
namespace {

// Operand of LDTILECFG: all eight tiles with 16 rows of 64 bytes.
struct alignas(64) TileConfig {
  u8 palette = 1, start_row = 0, reserved[14] = {};
  u16 row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  u8 rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

// Keeps required stores before tile loads, which GCC does not mark as reading memory.
void order_memory() {
  asm volatile("" ::: "memory");
}

void store_tile(const __m512i (&r)[16], BFloat16* out) {
  for (int i = 0; i < 16; ++i) _mm512_store_si512(out + 32 * i, r[i]);
}

// Packs one step of a panel from rows contiguous in k. For B, pairs of k and columns are transposed.
void pack_rows(PanelOf side, const BFloat16* x, i64 ld, i64 count, i64 depth, BFloat16* out) {
  for (i64 tile = 0; tile < 2; ++tile) {
    __m512i r[16];
    for (i64 i = 0; i < 16; ++i) {
      const bool exists = 16 * tile + i < count;
      r[i] = exists ? _mm512_maskz_loadu_epi16(first32(depth), x + (16 * tile + i) * ld) : _mm512_setzero_si512();
    }
    if (side == PanelOf::B) transpose16(r);
    store_tile(r, out + 512 * tile);
  }
}

// Packs one step of a panel from rows of k contiguous in i: interleaves pairs of rows, and for A transposes them.
void pack_columns(PanelOf side, const BFloat16* x, i64 ld, i64 count, i64 depth, BFloat16* out) {
  const __m512i low = _mm512_set_epi16(47, 15, 46, 14, 45, 13, 44, 12, 43, 11, 42, 10, 41, 9, 40, 8, 39, 7, 38, 6, 37,
                                       5, 36, 4, 35, 3, 34, 2, 33, 1, 32, 0);
  const __m512i high = _mm512_add_epi16(low, _mm512_set1_epi16(16));
  __m512i left[16], right[16];
  for (i64 i = 0; i < 16; ++i) {
    const __mmask32 mask = first32(count);
    const __m512i even = 2 * i < depth ? _mm512_maskz_loadu_epi16(mask, x + 2 * i * ld) : _mm512_setzero_si512();
    const __m512i odd =
        2 * i + 1 < depth ? _mm512_maskz_loadu_epi16(mask, x + (2 * i + 1) * ld) : _mm512_setzero_si512();
    left[i] = _mm512_permutex2var_epi16(even, low, odd);
    right[i] = _mm512_permutex2var_epi16(even, high, odd);
  }
  if (side == PanelOf::A) {
    transpose16(left);
    transpose16(right);
  }
  store_tile(left, out);
  store_tile(right, out + 512);
}

}  // namespace

TileSession::TileSession() {
  const TileConfig config;
  asm volatile("ldtilecfg %0" ::"m"(config));
}

TileSession::~TileSession() {
  asm volatile("tilerelease");
}

void pack_panel(PanelOf side, const BFloat16* x, i64 ld, bool k_contiguous, i64 count, i64 depth, BFloat16* out) {
  for (i64 k = 0; k < depth; k += kPanelStep, out += kStepSize) {
    if (k_contiguous) {
      pack_rows(side, x + k, ld, count, depth - k, out);
    } else {
      pack_columns(side, x + k * ld, ld, count, depth - k, out);
    }
  }
}

void multiply_block(ATiles a, const BFloat16* b, i64 steps, const float* in, float* out) {
  constexpr long kTileRow = 64, kBlockRow = 128;  // bytes
  order_memory();
  if (in) {
    _tile_loadd(0, in, kBlockRow);
    _tile_loadd(1, in + 16, kBlockRow);
    _tile_loadd(2, in + 512, kBlockRow);
    _tile_loadd(3, in + 528, kBlockRow);
  } else {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  }
  const long row = a.row * 2;
  for (i64 s = 0; s < steps; ++s) {
    _tile_loadd(6, b, kTileRow);
    _tile_loadd(4, a.data, row);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, b + 512, kTileRow);
    _tile_dpbf16ps(1, 4, 7);
    _tile_loadd(5, a.data + a.second_tile, row);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
    a.data += a.step;
    b += kStepSize;
  }
  _tile_stored(0, out, kBlockRow);
  _tile_stored(1, out + 16, kBlockRow);
  _tile_stored(2, out + 512, kBlockRow);
  _tile_stored(3, out + 528, kBlockRow);
}

}  // namespace mcpp::kernel

#pragma GCC pop_options

#pragma GCC diagnostic pop
