// Engines that multiply attention tiles, behind one interface, so that the algorithms (attention_forward.cpp,
// attention_backward.cpp) are written once:
//  - VectorTiles: fp32 or fp64 on the vector units;
//  - PairTiles: bf16 operands in pairs and fp32 sums, on AMX or with the dot products of AVX512_BF16.
//
// A block of up to 64 rows X [64, padded width] of q, k, v or dout is stored in the forms required by the GEMMs:
//   rows     X itself; the left operand of X Y^T (k and v against queries)
//   left_t   the left operand of X^T P (v in the output, k in dq)
//   right_t  the right operand of Y X^T (q and dout against keys)
//   right    the right operand of P X (q in dk, dout in dv)
// A tile of probabilities P [64 keys, 64 queries], computed in the accumulate type, is converted by `left` and `right`.
#if defined(MCPP_TENSOR_CPU_ATTENTION_ENGINES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MCPP_TENSOR_CPU_ATTENTION_ENGINES_INL_H_
#undef MCPP_TENSOR_CPU_ATTENTION_ENGINES_INL_H_
#else
#define MCPP_TENSOR_CPU_ATTENTION_ENGINES_INL_H_
#endif

#include <algorithm>
#include <cstring>

#include "tensor/cpu/attention/attention_problem.h"
#include "tensor/cpu/attention/bf16_tile.h"
#include "tensor/cpu/simd/simd-inl.h"
#include "tensor/cpu/simd/tile_gemm-inl.h"

HWY_BEFORE_NAMESPACE();
namespace mcpp::kernel::HWY_NAMESPACE {

namespace simd = mcpp::HWY_NAMESPACE;

/// Prefetches the row of `dim` elements a few iterations after `row`. The rows of a head are far apart, often on
/// separate pages, so hardware prefetchers do not help.
template <bool kForWrite, class T>
HWY_INLINE void prefetch_row_after(const T* row, i64 stride, i64 dim) {
  constexpr i64 kRowsAhead = 12;
  const T* prefetch_row = row + kRowsAhead * stride;
  for (i64 i = 0; i < dim; i += 64 / static_cast<i64>(sizeof(T))) __builtin_prefetch(prefetch_row + i, kForWrite);
}

/// Copies dst[64, padded] = `count` rows, converted and padded with zeros.
template <class T, class P>
void copy_rows(const HeadRows<T>& x, i64 b, i64 head, i64 first, i64 count, i64 padded, P* dst) {
  const i64 dim = x.head_dim;
  const T* src = x.row(b, head, first);
  for (i64 r = 0; r < count; ++r, src += x.seq_stride, dst += padded) {
    prefetch_row_after<false>(src, x.seq_stride, dim);
    if constexpr (std::is_same_v<T, P>) {
      std::memcpy(dst, src, static_cast<std::size_t>(dim) * sizeof(T));
    } else {
      const hn::ScalableTag<P> d;
      simd::sweep(d, 0, dim,
                  [&](i64 i, auto lanes) HWY_ATTR { simd::store(simd::load(d, src + i, lanes), d, dst + i, lanes); });
    }
    std::fill(dst + dim, dst + padded, P());
  }
  std::fill_n(dst, (kTile - count) * padded, P());
}

/// Stores factor * rows [count, padded], rounded, as rows [first, first + count) of a head.
template <class T, class R = AccumulateType<T>>
void store_rows(const HeadRows<T>& to, i64 b, i64 head, i64 first, i64 count, i64 padded, R factor, const R* rows) {
  const hn::ScalableTag<R> d;
  const auto f = hn::Set(d, factor);
  T* row = to.row(b, head, first);
  for (i64 r = 0; r < count; ++r, row += to.seq_stride, rows += padded) {
    prefetch_row_after<true>(row, to.seq_stride, to.head_dim);
    simd::sweep(d, 0, to.head_dim, [&](i64 i, auto lanes) HWY_ATTR {
      simd::store(hn::Mul(f, simd::load(d, rows + i, lanes)), d, row + i, lanes);
    });
  }
}

template <class E, class W, class R>
void store_rows(const ResultRows<E, W>& to, i64 b, i64 head, i64 first, i64 count, i64 padded, R factor,
                const R* rows) {
  to.visit([=](const auto& typed) { store_rows(typed, b, head, first, count, padded, factor, rows); });
}

template <class T>
class VectorTiles {
 public:
  using Packed = AccumulateType<T>;
  static constexpr bool kOneForm = true;  ///< rows also serve as left_t and right

  void right_t(const Packed* rows, HeadWidth w, Packed* dst) const { transpose(rows, kTile, w.padded, dst); }
  void left_t(const Packed*, HeadWidth, Packed*) const {}
  void right(const Packed*, HeadWidth, Packed*) const {}
  const Packed* tile_as_left(const Packed* tile, Packed*) const { return tile; }
  const Packed* tile_as_right(const Packed* tile, Packed*) const { return tile; }

  /// Computes s[0..keys, queries of the span] = rows of x times right_t of y.
  void scores(const Packed* x_rows, const Packed* y_right_t, HeadWidth w, Packed* s, const Span& q) const {
    const Operands<Packed> o{x_rows, w.padded, y_right_t + q.begin, kTile, s + q.begin, kTile};
    multiply<false>(d_, o, q.depth, q.end - q.begin, w.dim, false);
  }
  /// Computes sum[padded width, queries of the span] += left_t of x times the tile as right operand.
  void add_to_queries(const Packed* x_left_t, const Packed* tile, HeadWidth w, Packed* sum, const Span& q) const {
    const Operands<Packed> o{x_left_t, w.padded, tile + q.begin, kTile, sum + q.begin, kTile};
    multiply<true>(d_, o, w.dim, q.end - q.begin, q.depth, true);
  }
  /// Computes sum[keys, padded width] += the tile's rows times `right` of x, over the span's queries.
  void add_to_keys(const Packed* tile, const Packed* x_right, HeadWidth w, Packed* sum, const KeySpan& k) const {
    const Operands<Packed> o{tile + k.first_key * kTile + k.begin, kTile,   x_right + k.begin * w.padded, w.padded,
                             sum + k.first_key * w.padded,         w.padded};
    multiply<false>(d_, o, k.keys, round_up(w.dim, static_cast<i64>(hn::Lanes(d_))), k.end - k.begin, true);
  }

 private:
  static constexpr hn::ScalableTag<Packed> d_{};
};

/// Hardware units that multiply pairs of bf16 elements.
struct AmxUnit {
  TileSession session;
  static void multiply(const Bf16Operands& x, i64 m, i64 n, i64 k, bool accumulate) {
    amx_multiply(x, m, n, k, accumulate);
  }
};
struct DotUnit {
  static void multiply(const Bf16Operands& x, i64 m, i64 n, i64 k, bool accumulate) {
    dot_multiply(x, m, n, k, accumulate);
  }
};

/// Engine for bf16 pairs. In right operands two neighbors along the contraction share a 32-bit word.
template <class Unit>
class PairTiles {
 public:
  using Packed = BFloat16;
  static constexpr bool kOneForm = false;

  void right_t(const Packed* rows, HeadWidth w, Packed* dst) const {  // [padded width / 2 words, 64]
    transpose(reinterpret_cast<const float*>(rows), kTile, w.padded / 2, reinterpret_cast<float*>(dst));
  }
  void left_t(const Packed* rows, HeadWidth w, Packed* dst) const {  // [padded width, 64]
    alignas(64) Packed words[kTile * 2];
    for (i64 i = 0; i < w.padded; i += 2, dst += 2 * kTile) {
      for (i64 r = 0; r < kTile; ++r)
        words[2 * r] = rows[r * w.padded + i], words[2 * r + 1] = rows[r * w.padded + i + 1];
      for (i64 r = 0; r < kTile; ++r) dst[r] = words[2 * r], dst[kTile + r] = words[2 * r + 1];
    }
  }
  void right(const Packed* rows, HeadWidth w, Packed* dst) const {  // [32, padded width words]
    for (i64 r = 0; r < kTile; r += 2, rows += 2 * w.padded) {
      for (i64 i = 0; i < w.padded; ++i, dst += 2) dst[0] = rows[i], dst[1] = rows[w.padded + i];
    }
  }
  const Packed* tile_as_left(const float* tile, Packed* buffer) const {
    round_rows(tile, buffer);
    return buffer;
  }
  const Packed* tile_as_right(const float* tile, Packed* buffer) const {
    round_row_pairs(tile, buffer);
    return buffer;
  }

  void scores(const Packed* x_rows, const Packed* y_right_t, HeadWidth w, float* s, const Span& q) const {
    unit_.multiply({x_rows, w.padded, y_right_t + 2 * q.begin, 2 * kTile, s + q.begin, kTile}, q.depth, q.end - q.begin,
                   w.padded, false);
  }
  void add_to_queries(const Packed* x_left_t, const Packed* tile, HeadWidth w, float* sum, const Span& q) const {
    unit_.multiply({x_left_t, kTile, tile + 2 * q.begin, 2 * kTile, sum + q.begin, kTile}, w.padded, q.end - q.begin,
                   q.depth, true);
  }
  void add_to_keys(const Packed* tile, const Packed* x_right, HeadWidth w, float* sum, const KeySpan& k) const {
    unit_.multiply({tile + k.first_key * kTile + k.begin, kTile, x_right + k.begin * w.padded, 2 * w.padded,
                    sum + k.first_key * w.padded, w.padded},
                   k.keys, w.padded, k.end - k.begin, true);
  }

 private:
  Unit unit_;
};

}  // namespace mcpp::kernel::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // MCPP_TENSOR_CPU_ATTENTION_ENGINES_INL_H_
