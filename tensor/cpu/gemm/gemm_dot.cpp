// GEMMs in bf16 with ordered sums, in chunks of kDepth along k, with the dot products of AVX512_BF16, which add two
// neighbors along k at a time: a 32-bit word holds two values of a, or of b. See ordered_blocks.h.
#include <immintrin.h>

#include <cstring>

#include "base/integer_math.h"
#include "tensor/cpu/gemm/ordered_blocks.h"
#include "tensor/cpu/simd/avx512.h"

// GCC 12 warns about the undefined register used inside intrinsics (GCC bug 105593).
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512bf16,prfchw")

namespace mcpp::kernel {
namespace {

constexpr i64 kLanes = 16, kWidth = 2 * kLanes;
/// 26 sums, a row of b and a word of a fit the 32 registers.
constexpr int kRows = 13;

i64 pairs_of(i64 depth) {
  return (depth + 1) / 2;
}

/// Operands of the GEMM of several rows of a strip with a panel, in pairs.
template <class C>
struct Rows {
  const u32* a;
  const u32* b;
  float* sums;
  C* c;
};

template <int kCount, bool kTransposedA, class C>
void multiply_rows(const Rows<C>& x, const Strip<C>& strip, Prefetcher& prefetcher) {
  __m512 sums[kCount][2];
#pragma GCC unroll 16
  for (int i = 0; i < kCount; ++i) {
    sums[i][0] = sums[i][1] = _mm512_setzero_ps();
  }
  if (strip.is_last) prefetcher.begin(x.c, strip.ldc, kCount, kWidth);
  constexpr i64 kRow = kTransposedA ? 1 : kRowStep, kPair = kTransposedA ? kTransposedStripRows : 1;
  const u32 *a = x.a, *b = x.b;
  for (i64 p = pairs_of(strip.depth); p > 0; --p, a += kPair, b += kWidth) {
    prefetcher.step();
    const auto left = (__m512bh)_mm512_loadu_si512(b), right = (__m512bh)_mm512_loadu_si512(b + kLanes);
#pragma GCC unroll 16
    for (int i = 0; i < kCount; ++i) {
      const auto factor = (__m512bh)_mm512_set1_epi32(static_cast<int>(a[i * kRow]));
      sums[i][0] = _mm512_dpbf16_ps(sums[i][0], factor, left);
      sums[i][1] = _mm512_dpbf16_ps(sums[i][1], factor, right);
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < kCount; ++i) {
    float* before = x.sums + i * strip.ld;
    if (!strip.is_first) {
      sums[i][0] = _mm512_add_ps(sums[i][0], _mm512_loadu_ps(before));
      sums[i][1] = _mm512_add_ps(sums[i][1], _mm512_loadu_ps(before + kLanes));
    }
    if (strip.is_last) {
      store_row(x.c + i * strip.ldc, strip.columns, strip.beta, sums[i][0], sums[i][1]);
    } else {
      _mm512_storeu_ps(before, sums[i][0]);
      _mm512_storeu_ps(before + kLanes, sums[i][1]);
    }
  }
}

template <int kMaxBlock, bool kTransposedA, class C>
void multiply_up_to(const Rows<C>& x, i64 rows, const Strip<C>& strip, Prefetcher& prefetcher) {
  if constexpr (kMaxBlock > 1) {
    if (rows < kMaxBlock) return multiply_up_to<kMaxBlock - 1, kTransposedA>(x, rows, strip, prefetcher);
  }
  multiply_rows<kMaxBlock, kTransposedA>(x, strip, prefetcher);
}

/// Splits into blocks of nearly equal numbers of rows.
template <bool kTransposedA, class C>
void multiply_strip(const Strip<C>& strip, Prefetcher& prefetcher) {
  Rows<C> x{reinterpret_cast<const u32*>(strip.a), reinterpret_cast<const u32*>(strip.b), strip.sums, strip.c};
  i64 rows = strip.rows;
  for (i64 blocks = ceil_div(rows, kRows); blocks > 0; --blocks) {
    const i64 block_rows = ceil_div(rows, blocks);
    multiply_up_to<kRows, kTransposedA>(x, block_rows, strip, prefetcher);
    x.a += block_rows * (kTransposedA ? 1 : kRowStep);
    x.sums += block_rows * strip.ld;
    x.c += block_rows * strip.ldc;
    rows -= block_rows;
  }
}

/// Computes to[16, 32] = the transpose of 16 rows of 16 words, with row stride `ld` in words. Combines words of four
/// rows during the load, which saves half of the shuffles and fits the registers.
void transpose_rows(const BFloat16* from, i64 ld, u32* to) {
  const auto chunk = [&](i64 row, i64 word) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + row * ld + 2 * word));
  };
  for (i64 word = 0; word < kLanes; word += 4, to += 4 * kWidth) {
    __m512i rows[4];
#pragma GCC unroll 4
    for (i64 i = 0; i < 4; ++i) {
      rows[i] = _mm512_castsi128_si512(chunk(i, word));
      rows[i] = _mm512_inserti32x4(rows[i], chunk(4 + i, word), 1);
      rows[i] = _mm512_inserti32x4(rows[i], chunk(8 + i, word), 2);
      rows[i] = _mm512_inserti32x4(rows[i], chunk(12 + i, word), 3);
    }
    const __m512i low = _mm512_unpacklo_epi32(rows[0], rows[1]), high = _mm512_unpackhi_epi32(rows[0], rows[1]);
    const __m512i low2 = _mm512_unpacklo_epi32(rows[2], rows[3]), high2 = _mm512_unpackhi_epi32(rows[2], rows[3]);
    _mm512_storeu_si512(to, _mm512_unpacklo_epi64(low, low2));
    _mm512_storeu_si512(to + kWidth, _mm512_unpackhi_epi64(low, low2));
    _mm512_storeu_si512(to + 2 * kWidth, _mm512_unpacklo_epi64(high, high2));
    _mm512_storeu_si512(to + 3 * kWidth, _mm512_unpackhi_epi64(high, high2));
  }
}

/// Writes to[pairs, 32] = columns of the transposed b, whose rows already consist of words. Missing columns are 0.
void transpose_panel(Operand<BFloat16> b, i64 depth, i64 columns, u32* to) {
  for (i64 k = 0; k < depth; k += kWidth, to += kLanes * kWidth) {
    const __mmask32 mask = first32(depth - k);
    const i64 pairs = std::min(kLanes, pairs_of(depth - k));
    for (i64 half = 0; half < 2; ++half) {
      if (depth - k >= kWidth && columns >= (half + 1) * kLanes) {
        transpose_rows(b.data + half * kLanes * b.ld + k, b.ld, to + half * kLanes);
        continue;
      }
      __m512i rows[kLanes];
      for (i64 j = 0; j < kLanes; ++j) {
        const i64 column = half * kLanes + j;
        const BFloat16* from = b.data + column * b.ld + k;
        rows[j] = column < columns ? _mm512_maskz_loadu_epi16(mask, from) : _mm512_setzero_si512();
      }
      transpose16(rows);
      for (i64 p = 0; p < pairs; ++p) _mm512_storeu_si512(to + p * kWidth + half * kLanes, rows[p]);
    }
  }
}

/// Indices for _mm512_permutex2var_epi16: the pairs of the lower and of the upper half of two registers.
struct PairIndices {
  __m512i lower, upper;
};
PairIndices pair_indices() {
  alignas(64) u16 lower[kWidth], upper[kWidth];
  for (u16 i = 0; i < kLanes; ++i) {
    lower[2 * i] = i, lower[2 * i + 1] = static_cast<u16>(kWidth + i);
    upper[2 * i] = static_cast<u16>(kLanes + i), upper[2 * i + 1] = static_cast<u16>(kWidth + kLanes + i);
  }
  return {_mm512_load_si512(lower), _mm512_load_si512(upper)};
}

/// Writes to[columns], padded with 0 to a multiple of 32, = pairs of elements of two rows; a missing second row reads
/// as 0.
void interleave(const PairIndices& at, const BFloat16* first, const BFloat16* second, i64 columns, u32* to) {
  for (i64 j = 0; j < columns; j += kWidth) {
    const __mmask32 mask = first32(columns - j);
    const __m512i lo = _mm512_maskz_loadu_epi16(mask, first + j);
    const __m512i hi = second ? _mm512_maskz_loadu_epi16(mask, second + j) : _mm512_setzero_si512();
    _mm512_storeu_si512(to + j, _mm512_permutex2var_epi16(lo, at.lower, hi));
    _mm512_storeu_si512(to + j + kLanes, _mm512_permutex2var_epi16(lo, at.upper, hi));
  }
}

struct Bf16DotKernel {
  static constexpr i64 kDepth = 2 * kWords;
  static constexpr bool kWritesTiles = true;
  static i64 width() { return kWidth; }
  static i64 steps(i64 rows, i64 columns, i64 depth) {
    return ceil_div(rows, kRows) * ceil_div(columns, kWidth) * pairs_of(depth);
  }

  static i64 copy_panels(Operand<BFloat16> b, i64 depth, i64 columns, BlockScratch& scratch, bool is_done) {
    const i64 size = pairs_of(depth) * kWidth + kPanelPadding;
    if (is_done) return size;
    auto* to = reinterpret_cast<u32*>(scratch.b);
    if (b.transposed) {
      for (i64 j = 0; j < columns; j += kWidth, to += size)
        transpose_panel({b.data + j * b.ld, b.ld, true}, depth, std::min(kWidth, columns - j), to);
      return size;
    }
    const PairIndices at = pair_indices();
    for (i64 k = 0; k < depth; k += 2) {
      const BFloat16* from = b.data + k * b.ld;
      const BFloat16* next = k + 1 < depth ? from + b.ld : nullptr;
      u32* panel = to + k / 2 * kWidth;
      for (i64 j = 0; j < columns; j += kWidth, panel += size) {
        interleave(at, from + j, next ? next + j : nullptr, std::min(kWidth, columns - j), panel);
      }
    }
    return size;
  }

  static void copy_strip(Operand<BFloat16> a, i64 rows, i64 depth, float* scratch) {
    auto* to = reinterpret_cast<u32*>(scratch);
    if (a.transposed) {
      const PairIndices at = pair_indices();
      for (i64 k = 0; k < depth; k += 2, to += kTransposedStripRows)
        interleave(at, a.data + k * a.ld, k + 1 < depth ? a.data + (k + 1) * a.ld : nullptr, rows, to);
      return;
    }
    for (i64 i = 0; i < rows; ++i, to += kRowStep) {
      to[pairs_of(depth) - 1] = 0;
      std::memcpy(to, a.data + i * a.ld, static_cast<std::size_t>(depth) * sizeof(BFloat16));
    }
  }

  static bool copies_on_first_use(Operand<BFloat16>, i64) { return false; }

  template <class C>
  static void multiply(const Strip<C>& strip, bool, Prefetcher& prefetcher) {
    if (strip.is_a_transposed)
      multiply_strip<true>(strip, prefetcher);
    else
      multiply_strip<false>(strip, prefetcher);
  }
};

template <class C>
void dot_block(const BlockTask<BFloat16, C>& x, BlockScratch& scratch) {
  compute_block(Bf16DotKernel(), x, scratch);
}

}  // namespace
}  // namespace mcpp::kernel

#pragma GCC pop_options

namespace mcpp::kernel {

template <class C>
void gemm_dot(CpuDevice& device, std::span<const Gemm<BFloat16, C>> gemms) {
  run_blocks(device, gemms, Bf16DotKernel::kDepth, /*needs_sums=*/true, dot_block<C>);
}

template void gemm_dot(CpuDevice&, std::span<const Gemm<BFloat16, float>>);
template void gemm_dot(CpuDevice&, std::span<const Gemm<BFloat16, BFloat16>>);

}  // namespace mcpp::kernel

#pragma GCC diagnostic pop
