// GEMMs of small row-major matrices that fit the L1 or L2 cache, and transposition: building blocks of tiled
// attention and of GEMMs with ordered sums. C (+)= A B, where only B is read in vectors; A is broadcast element by
// element, so that A and its transpose can both be used in place. Each element of C is one sum over k in ascending
// order, independent of its block and of splits along k.
#if defined(MCPP_TENSOR_CPU_TILE_GEMM_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MCPP_TENSOR_CPU_TILE_GEMM_INL_H_
#undef MCPP_TENSOR_CPU_TILE_GEMM_INL_H_
#else
#define MCPP_TENSOR_CPU_TILE_GEMM_INL_H_
#endif

#include <algorithm>

#include "base/integer_math.h"
#include "base/types.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace mcpp::kernel::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

/// Operands of a GEMM: element (i, j) of X is at x[i * ldx + j]. With kTransposedA, A is [k, m].
template <class R>
struct Operands {
  const R* a;
  i64 lda;
  const R* b;
  i64 ldb;
  R* c;
  i64 ldc;
};

/// No-op callback of the loop over k.
struct NoLoopHook {
  template <class R>
  void begin(const R*, i64, i64, i64) {}
  void step() {}
};

/// Update of c. Begin: overwrite c with the sum. Continue: start the sum with c. Add: add the sum to c.
enum class Sums { Begin, Continue, Add };

/// Iterations over k between calls of hook.step(), which would otherwise take a fifth of the instructions.
inline constexpr i64 kHookInterval = 16;

/// Computes a block of kRows rows and kVectors vectors of C, held in registers during the loop over k, which calls
/// hook.step() every kHookInterval iterations. With kCopiesB the vectors of B are also written to copy[k, kVectors].
template <int kRows, int kVectors, bool kTransposedA, bool kCopiesB = false, class D, class R = hn::TFromD<D>,
          class LoopHook = NoLoopHook>
HWY_INLINE void multiply_block(D d, const Operands<R>& x, i64 k, Sums sums, LoopHook&& loop_hook = {},
                               R* copy = nullptr) {
  const i64 lanes = static_cast<i64>(hn::Lanes(d));
  loop_hook.begin(x.c, x.ldc, kRows, kVectors * lanes);
  const i64 row_step = kTransposedA ? 1 : x.lda, k_step = kTransposedA ? x.lda : 1;
  hn::Vec<D> sum[kRows][kVectors];
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < kVectors; ++j) {
      sum[i][j] = sums == Sums::Continue ? hn::LoadU(d, x.c + i * x.ldc + j * lanes) : hn::Zero(d);
    }
  }
  const R* a = x.a;
  const R* b = x.b;
  const auto add_next = [&]() HWY_ATTR {
    hn::Vec<D> row[kVectors];
#pragma GCC unroll 4
    for (int j = 0; j < kVectors; ++j) row[j] = hn::LoadU(d, b + j * lanes);
    if constexpr (kCopiesB) {
#pragma GCC unroll 4
      for (int j = 0; j < kVectors; ++j, copy += lanes) hn::StoreU(row[j], d, copy);
    }
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i) {
      const auto factor = hn::Set(d, a[i * row_step]);
#pragma GCC unroll 4
      for (int j = 0; j < kVectors; ++j) sum[i][j] = hn::MulAdd(factor, row[j], sum[i][j]);
    }
    a += k_step, b += x.ldb;
  };
  for (i64 p = 0; p < k;) {
    loop_hook.step();
    for (const i64 end = std::min(k, p + kHookInterval); p < end; ++p) add_next();
  }
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < kVectors; ++j) {
      R* c = x.c + i * x.ldc + j * lanes;
      hn::StoreU(sums == Sums::Add ? hn::Add(hn::LoadU(d, c), sum[i][j]) : sum[i][j], d, c);
    }
  }
}

/// Computes all rows of kVectors columns of vectors.
template <int kRows, int kVectors, bool kTransposedA, class D, class R = hn::TFromD<D>>
HWY_NOINLINE void multiply_columns(D d, Operands<R> x, i64 m, i64 k, bool accumulate) {
  const Sums sums = accumulate ? Sums::Continue : Sums::Begin;
  const auto advance = [&](i64 rows) {
    x.a += rows * (kTransposedA ? 1 : x.lda);
    x.c += rows * x.ldc;
    m -= rows;
  };
  for (; m >= kRows; advance(kRows)) multiply_block<kRows, kVectors, kTransposedA>(d, x, k, sums);
  for (; m >= 4; advance(4)) multiply_block<4, kVectors, kTransposedA>(d, x, k, sums);
  for (; m >= 1; advance(1)) multiply_block<1, kVectors, kTransposedA>(d, x, k, sums);
}

/// Computes multiply_block for `rows` <= kMaxRows rows.
template <int kMaxRows, int kVectors, bool kTransposedA, bool kCopiesB, class D, class LoopHook,
          class R = hn::TFromD<D>>
HWY_INLINE void multiply_rows(D d, const Operands<R>& x, i64 rows, i64 k, Sums sums, LoopHook& loop_hook, R* copy) {
  if constexpr (kMaxRows > 1) {
    if (rows < kMaxRows)
      return multiply_rows<kMaxRows - 1, kVectors, kTransposedA, kCopiesB>(d, x, rows, k, sums, loop_hook, copy);
  }
  multiply_block<kMaxRows, kVectors, kTransposedA, kCopiesB>(d, x, k, sums, loop_hook, copy);
}

/// Computes multiply_columns for any m in blocks of at most kMaxRows rows and nearly equal size. With a `copy`, the
/// first block writes B there, [k, kVectors], at no extra cost, and the other blocks read it.
template <int kMaxRows, int kVectors, bool kTransposedA, class D, class LoopHook, class R = hn::TFromD<D>>
HWY_NOINLINE void multiply_panel(D d, Operands<R> x, i64 m, i64 k, Sums sums, LoopHook& loop_hook, R* copy) {
  for (i64 blocks = ceil_div(m, kMaxRows); blocks > 0; --blocks) {
    const i64 rows = ceil_div(m, blocks);
    if (copy) {
      multiply_rows<kMaxRows, kVectors, kTransposedA, true>(d, x, rows, k, sums, loop_hook, copy);
      x.b = copy, x.ldb = kVectors * static_cast<i64>(hn::Lanes(d));
      copy = nullptr;
    } else {
      multiply_rows<kMaxRows, kVectors, kTransposedA, false>(d, x, rows, k, sums, loop_hook, copy);
    }
    x.a += rows * (kTransposedA ? 1 : x.lda);
    x.c += rows * x.ldc;
    m -= rows;
  }
}

/// Computes C[m, n] = A B, or C += A B. n is a multiple of the vector's lanes.
template <bool kTransposedA, class D, class R = hn::TFromD<D>>
void multiply(D d, Operands<R> x, i64 m, i64 n, i64 k, bool accumulate) {
  const i64 lanes = static_cast<i64>(hn::Lanes(d));
  const auto columns = [&]<int kRows, int kVectors>() {
    for (; n >= kVectors * lanes; n -= kVectors * lanes) {
      multiply_columns<kRows, kVectors, kTransposedA>(d, x, m, k, accumulate);
      x.b += kVectors * lanes;
      x.c += kVectors * lanes;
    }
  };
#if HWY_TARGET <= HWY_AVX3 || HWY_ARCH_ARM_A64
  // Uses 32 registers: 24 sums, one row of B and a broadcast.
  columns.template operator()<6, 4>();
  columns.template operator()<12, 2>();
  columns.template operator()<12, 1>();
#else
  columns.template operator()<6, 2>();
  columns.template operator()<12, 1>();
#endif
}

/// Computes dst[columns, rows] = the transpose of src[rows, columns], with row strides `step` and `ld`; both sizes are
/// multiples of 4.
HWY_INLINE void transpose(const float* src, i64 ld, i64 rows, i64 columns, float* dst, i64 step) {
  const hn::CappedTag<float, 4> d;
  for (i64 i = 0; i < rows; i += 4) {
    for (i64 j = 0; j < columns; j += 4) {
      const float* from = src + i * ld + j;
      float* to = dst + j * step + i;
      const auto r0 = hn::LoadU(d, from), r1 = hn::LoadU(d, from + ld);
      const auto r2 = hn::LoadU(d, from + 2 * ld), r3 = hn::LoadU(d, from + 3 * ld);
      const auto even0 = hn::InterleaveLower(d, r0, r2), odd0 = hn::InterleaveLower(d, r1, r3);
      const auto even1 = hn::InterleaveUpper(d, r0, r2), odd1 = hn::InterleaveUpper(d, r1, r3);
      hn::StoreU(hn::InterleaveLower(d, even0, odd0), d, to);
      hn::StoreU(hn::InterleaveUpper(d, even0, odd0), d, to + step);
      hn::StoreU(hn::InterleaveLower(d, even1, odd1), d, to + 2 * step);
      hn::StoreU(hn::InterleaveUpper(d, even1, odd1), d, to + 3 * step);
    }
  }
}
HWY_INLINE void transpose(const float* src, i64 rows, i64 columns, float* dst) {
  transpose(src, columns, rows, columns, dst, rows);
}
HWY_INLINE void transpose(const double* src, i64 rows, i64 columns, double* dst) {
  for (i64 i = 0; i < rows; ++i) {
    for (i64 j = 0; j < columns; ++j) dst[j * rows + i] = src[i * columns + j];
  }
}

}  // namespace mcpp::kernel::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // MCPP_TENSOR_CPU_TILE_GEMM_INL_H_
