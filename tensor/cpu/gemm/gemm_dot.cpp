// Products of bf16 whose sums are in order, in parts of kDepth, by the dot products of AVX512_BF16, which add two
// neighbours along k at a time: a word of 32 bits has two numbers of a, or of b. See ordered_blocks.h.
#include <immintrin.h>

#include <cstring>

#include "tensor/cpu/gemm/ordered_blocks.h"
#include "tensor/cpu/simd/avx512_bf16.h"

// GCC 12 takes the undefined register that intrinsics start from for a mistake (its bug 105593).
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512bf16")

namespace mcpp::kernel {
namespace {

constexpr i64 kLanes = 16, kWidth = 2 * kLanes;
/// 24 sums, a row of b and a word of a fit the 32 registers.
constexpr int kRows = 12;

i64 pairs_of(i64 depth) {
  return (depth + 1) / 2;
}

/// A strip of a and a panel of b, in pairs: `a_step` words from row to row, or if a lies transposed from pair to pair.
struct Operands {
  const u32* a;
  i64 a_step;
  const u32* b;
  float* c;
  i64 ldc;
};

template <int kCount, bool kTransposedA>
void multiply_rows(const Operands& x, i64 pairs, bool accumulate) {
  __m512 sums[kCount][2];
#pragma GCC unroll 12
  for (int i = 0; i < kCount; ++i) {
    sums[i][0] = sums[i][1] = _mm512_setzero_ps();
  }
  const i64 row_step = kTransposedA ? 1 : x.a_step, pair_step = kTransposedA ? x.a_step : 1;
  const u32 *a = x.a, *b = x.b;
  for (i64 p = 0; p < pairs; ++p, a += pair_step, b += kWidth) {
    const auto left = (__m512bh)_mm512_loadu_si512(b), right = (__m512bh)_mm512_loadu_si512(b + kLanes);
#pragma GCC unroll 12
    for (int i = 0; i < kCount; ++i) {
      const auto factor = (__m512bh)_mm512_set1_epi32(static_cast<int>(a[i * row_step]));
      sums[i][0] = _mm512_dpbf16_ps(sums[i][0], factor, left);
      sums[i][1] = _mm512_dpbf16_ps(sums[i][1], factor, right);
    }
  }
#pragma GCC unroll 12
  for (int i = 0; i < kCount; ++i) {
    float* c = x.c + i * x.ldc;
    if (accumulate) {
      sums[i][0] = _mm512_add_ps(sums[i][0], _mm512_loadu_ps(c));
      sums[i][1] = _mm512_add_ps(sums[i][1], _mm512_loadu_ps(c + kLanes));
    }
    _mm512_storeu_ps(c, sums[i][0]);
    _mm512_storeu_ps(c + kLanes, sums[i][1]);
  }
}

template <int kMost, bool kTransposedA>
void multiply_some(const Operands& x, i64 rows, i64 pairs, bool accumulate) {
  if constexpr (kMost > 1) {
    if (rows < kMost) return multiply_some<kMost - 1, kTransposedA>(x, rows, pairs, accumulate);
  }
  multiply_rows<kMost, kTransposedA>(x, pairs, accumulate);
}

/// In blocks of nearly the same number of rows.
template <bool kTransposedA>
void multiply_strip(Operands x, i64 rows, i64 pairs, bool accumulate) {
  for (i64 blocks = (rows + kRows - 1) / kRows; blocks > 0; --blocks) {
    const i64 some = (rows + blocks - 1) / blocks;
    multiply_some<kRows, kTransposedA>(x, some, pairs, accumulate);
    x.a += some * (kTransposedA ? 1 : x.a_step);
    x.c += some * x.ldc;
    rows -= some;
  }
}

/// to[pairs, 32] = columns of b, which lies transposed: its rows are words already. Columns that are not there are 0.
void transpose_panel(Operand<BFloat16> b, i64 depth, i64 columns, u32* to) {
  for (i64 k = 0; k < depth; k += kWidth, to += kLanes * kWidth) {
    const __mmask32 there = first32(depth - k);
    const i64 pairs = std::min(kLanes, pairs_of(depth - k));
    for (i64 half = 0; half < 2; ++half) {
      __m512i rows[kLanes];
      for (i64 j = 0; j < kLanes; ++j) {
        const i64 column = half * kLanes + j;
        const BFloat16* from = b.data + column * b.ld + k;
        rows[j] = column < columns ? _mm512_maskz_loadu_epi16(there, from) : _mm512_setzero_si512();
        if (column < columns) _mm_prefetch(from + 4 * kWidth, _MM_HINT_T0);
      }
      transpose16(rows);
      for (i64 p = 0; p < pairs; ++p) _mm512_storeu_si512(to + p * kWidth + half * kLanes, rows[p]);
    }
  }
}

/// lo | hi << 16 in each lane.
__m512i pairs_from(__m256i lo, __m256i hi) {
  return _mm512_or_si512(_mm512_cvtepu16_epi32(lo), _mm512_slli_epi32(_mm512_cvtepu16_epi32(hi), 16));
}

/// to[columns] = pairs of two rows of numbers; what the second would be, if there is none, is 0.
void interleave(const BFloat16* first, const BFloat16* second, i64 columns, u32* to) {
  for (i64 j = 0; j < columns; j += kLanes) {
    const __mmask16 there = first16(columns - j);
    const __m256i lo = _mm256_maskz_loadu_epi16(there, first + j);
    const __m256i hi = second ? _mm256_maskz_loadu_epi16(there, second + j) : _mm256_setzero_si256();
    _mm512_storeu_si512(to + j, pairs_from(lo, hi));
  }
}

struct DotKernel {
  static constexpr i64 kDepth = 2 * kWords;
  static constexpr bool kAddsLast = true;
  static i64 width() { return kWidth; }

  static i64 copy_panels(Operand<BFloat16> b, i64 depth, i64 columns, BlockRoom& room) {
    const i64 size = pairs_of(depth) * kWidth + kPanelApart;
    auto* to = reinterpret_cast<u32*>(room.b);
    if (b.transposed) {
      for (i64 j = 0; j < columns; j += kWidth, to += size)
        transpose_panel({b.data + j * b.ld, b.ld, true}, depth, std::min(kWidth, columns - j), to);
      return size;
    }
    for (i64 k = 0; k < depth; k += 2) {
      const BFloat16* from = b.data + k * b.ld;
      const BFloat16* next = k + 1 < depth ? from + b.ld : nullptr;
      u32* panel = to + k / 2 * kWidth;
      for (i64 j = 0; j < columns; j += kWidth, panel += size) {
        const i64 there = std::min(kWidth, columns - j);
        if (there <= kLanes) std::memset(panel + kLanes, 0, kLanes * sizeof(u32));
        interleave(from + j, next ? next + j : nullptr, there, panel);
      }
    }
    return size;
  }

  static i64 copy_strip(Operand<BFloat16> a, i64 rows, i64 depth, float* room) {
    auto* to = reinterpret_cast<u32*>(room);
    if (a.transposed) {
      for (i64 k = 0; k < depth; k += 2, to += kStripRows)
        interleave(a.data + k * a.ld, k + 1 < depth ? a.data + (k + 1) * a.ld : nullptr, rows, to);
      return kStripRows;
    }
    for (i64 i = 0; i < rows; ++i, to += kRowStep) {
      to[pairs_of(depth) - 1] = 0;
      std::memcpy(to, a.data + i * a.ld, static_cast<std::size_t>(depth) * sizeof(BFloat16));
    }
    return kRowStep;
  }

  static void multiply(bool transposed, const float* a, i64 a_step, const float* b, float* c, i64 ldc, i64 rows,
                       i64 depth, bool accumulate) {
    const Operands x{reinterpret_cast<const u32*>(a), a_step, reinterpret_cast<const u32*>(b), c, ldc};
    if (transposed)
      multiply_strip<true>(x, rows, pairs_of(depth), accumulate);
    else
      multiply_strip<false>(x, rows, pairs_of(depth), accumulate);
  }

  template <class C>
  static void write(const Product<BFloat16, C>& x, const float* sums, i64 ld) {
    for (i64 r = 0; r < x.size.m; ++r) {
      for (i64 j = 0; j < x.size.n; j += kWidth) {
        const float* from = sums + r * ld + j;
        store_row(x.c + r * x.ldc + j, x.size.n - j, x.beta, _mm512_loadu_ps(from), _mm512_loadu_ps(from + kLanes));
      }
    }
  }
};

template <class C>
void dot_block(const Product<BFloat16, C>& x, BlockRoom& room) {
  compute_block(DotKernel(), x, room);
}

}  // namespace
}  // namespace mcpp::kernel

#pragma GCC pop_options

namespace mcpp::kernel {

template <class C>
void gemm_dot(CpuDevice& device, std::span<const Product<BFloat16, C>> products) {
  run_blocks(device, products, dot_block<C>);
}

template void gemm_dot(CpuDevice&, std::span<const Product<BFloat16, float>>);
template void gemm_dot(CpuDevice&, std::span<const Product<BFloat16, BFloat16>>);

}  // namespace mcpp::kernel
