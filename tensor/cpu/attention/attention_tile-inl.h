// Elementwise operations on a tile of transposed scores [64 keys, 64 queries]: mask, 2^x, dropout.
#if defined(MCPP_TENSOR_CPU_ATTENTION_TILE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MCPP_TENSOR_CPU_ATTENTION_TILE_INL_H_
#undef MCPP_TENSOR_CPU_ATTENTION_TILE_INL_H_
#else
#define MCPP_TENSOR_CPU_ATTENTION_TILE_INL_H_
#endif

#include <limits>
#include <numbers>

#include "tensor/cpu/attention/attention_problem.h"
#include "tensor/cpu/simd/math-inl.h"
#include "tensor/ops/dropout.h"

HWY_BEFORE_NAMESPACE();
namespace mcpp::kernel::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
namespace simd = mcpp::HWY_NAMESPACE;

template <class R>
struct Exp2Constants;
template <>
struct Exp2Constants<float> {
  static constexpr int kFraction = 23;
  static constexpr float kLowest = -126, kRound = 0x1.8p23f;
  /// Minimax fit of 2^x on |x| <= 1/2, highest power first. The maximum error, including rounding, is one unit in
  /// the last place.
  static constexpr float kPolynomial[]{
      0.00015345812f, 0.00133999309f, 0.00961848907f, 0.0555032864f, 0.240226462f, 0.693147182f, 1.0f};
};
template <>
struct Exp2Constants<double> {
  static constexpr int kFraction = 52;
  static constexpr double kLowest = -1022, kRound = 0x1.8p52;
  /// Taylor series ln(2)^n / n!, highest power first.
  static constexpr double kPolynomial[]{1.3691488853904124e-12, 2.5678435993488196e-11,
                                        4.44553827187081e-10,   7.054911620801121e-09,
                                        1.0178086009239696e-07, 1.3215486790144305e-06,
                                        1.5252733804059838e-05, 0.00015403530393381606,
                                        0.0013333558146428441,  0.009618129107628477,
                                        0.055504108664821576,   0.2402265069591007,
                                        0.6931471805599453,     1.0};
};

/// Computes 2^x for x up to slightly above 0. Denormal results are 0; NaN is preserved.
template <class D>
HWY_INLINE hn::Vec<D> exp2_of(D d, hn::Vec<D> x) {
  using C = Exp2Constants<hn::TFromD<D>>;
  const hn::RebindToUnsigned<D> bits;
  const auto round = hn::Set(d, C::kRound);
  const auto shifted = hn::Add(x, round);  // the nearest integer, in the low bits
  const auto rest = hn::Sub(x, hn::Sub(shifted, round));
  const auto y = simd::polynomial(d, rest, C::kPolynomial);
  const auto exponent = hn::ShiftLeft<C::kFraction>(hn::BitCast(bits, shifted));
  const auto scaled = hn::BitCast(d, hn::Add(hn::BitCast(bits, y), exponent));
  return hn::IfThenZeroElse(hn::Lt(x, hn::Set(d, C::kLowest)), scaled);
}

/// Applies the soft cap to `count` dot products: tanh(scale x / soft_cap).
template <class T, class R = AccumulateType<T>>
void cap_products(const AttentionProblem<T>& p, i64 count, R* products) {
  const hn::ScalableTag<R> d;
  const auto factor = hn::Set(d, static_cast<R>(p.scale / p.soft_cap));
  simd::sweep(d, 0, count, [&](i64 i, auto lanes) HWY_ATTR {
    simd::store(simd::tanh_of(d, hn::Mul(simd::load(d, products + i, lanes), factor)), d, products + i, lanes);
  });
}

/// Applies the soft cap to a span of a tile; no-op without a cap.
template <class T, class R = AccumulateType<T>>
void cap_tile(const AttentionProblem<T>& p, const Span& span, R* s) {
  if (p.soft_cap == 0) return;
  for (i64 k = 0; k < span.depth; ++k) cap_products(p, span.end - span.begin, s + k * kTile + span.begin);
}

/// Masks keys that come after a query, and keys past the last one.
template <class T, class R = AccumulateType<T>>
void mask_later_keys(const AttentionProblem<T>& p, const TileOrigin& at, const Visible& v, R* s) {
  const hn::ScalableTag<R> d;
  const i64 lanes = static_cast<i64>(hn::Lanes(d));
  const auto hidden = hn::Set(d, -std::numeric_limits<R>::infinity());
  for_query_spans(v, [&](const Span& span) {
    for (i64 k = 0; k < span.depth; ++k) {
      const i64 key = at.first_key + k;
      // Queries of the tile before this one do not see key k.
      const i64 first_query = key < p.keys ? p.query_at.rows_before(p.key_at.at(key)) - at.first_query : kTile;
      const auto bound = hn::Set(d, static_cast<R>(first_query));
      for (i64 q = span.begin; q < std::min(span.end, first_query); q += lanes) {
        const auto is_hidden = hn::Lt(hn::Iota(d, static_cast<R>(q)), bound);
        R* at_q = s + k * kTile + q;
        hn::StoreU(hn::IfThenElse(is_hidden, hidden, hn::LoadU(d, at_q)), d, at_q);
      }
    }
  });
}

/// Masks keys of earlier documents, and keys before the window.
template <class T, class R = AccumulateType<T>>
void mask_earlier_keys(const AttentionProblem<T>& p, const TileOrigin& at, const Visible& v, R* s) {
  const hn::ScalableTag<R> d;
  alignas(64) R first_keys[kTile];  // relative to the tile
  for (i64 q = 0; q < kTile; ++q) {
    const i64 first = p.first_key(at.b, std::min(at.first_query + q, p.queries - 1)) - at.first_key;
    first_keys[q] = static_cast<R>(std::clamp<i64>(first, 0, kTile));
  }
  const auto hidden = hn::Set(d, -std::numeric_limits<R>::infinity());
  for_query_spans(v, [&](const Span& span) {
    for (i64 k = 0; k < span.depth; ++k) {
      const auto key = hn::Set(d, static_cast<R>(k));
      for (i64 q = span.begin; q < span.end; q += static_cast<i64>(hn::Lanes(d))) {
        R* at_q = s + k * kTile + q;
        const auto is_hidden = hn::Lt(key, hn::Load(d, first_keys + q));
        hn::StoreU(hn::IfThenElse(is_hidden, hidden, hn::LoadU(d, at_q)), d, at_q);
      }
    }
  });
}

/// Sets masked scores to -infinity in the visible part `v` of the tile.
template <class T, class R = AccumulateType<T>>
void mask_tile(const AttentionProblem<T>& p, const TileOrigin& at, const Visible& v, R* s) {
  mask_later_keys(p, at, v, s);
  if (p.starts || p.window > 0) mask_earlier_keys(p, at, v, s);
}

/// Four outputs of Philox4x32-10 (base/philox.h) for a vector of counters.
template <class D>
struct PhiloxVectors {
  hn::Vec<D> word[4];
};
template <class D>
HWY_INLINE PhiloxVectors<D> philox(D d, u64 key, PhiloxVectors<D> c) {
  const auto multiply_wide = [d](hn::Vec<D> x, u32 factor, hn::Vec<D>& high) {
    const hn::Repartition<u64, D> wide;
    const auto f = hn::Set(d, factor);
    const auto even = hn::MulEven(x, f);
    const auto odd = hn::MulEven(hn::BitCast(d, hn::ShiftRight<32>(hn::BitCast(wide, x))), f);
    high = hn::OddEven(hn::BitCast(d, odd), hn::BitCast(d, hn::ShiftRight<32>(even)));
    return hn::OddEven(hn::BitCast(d, hn::ShiftLeft<32>(odd)), hn::BitCast(d, even));
  };
  u32 k0 = static_cast<u32>(key), k1 = static_cast<u32>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    hn::Vec<D> high0, high1;
    const auto low0 = multiply_wide(c.word[0], 0xD2511F53, high0);
    const auto low1 = multiply_wide(c.word[2], 0xCD9E8D57, high1);
    c = {{hn::Xor(hn::Xor(high1, c.word[1]), hn::Set(d, k0)), low1, hn::Xor(hn::Xor(high0, c.word[3]), hn::Set(d, k1)),
          low0}};
    k0 += 0x9E3779B9, k1 += 0xBB67AE85;
  }
  return c;
}

/// Dropout of the probabilities of one (batch column, query head), as defined by attention_dropout_key. The factors are
/// independent of tiling and ranks.
class ProbabilityDropout {
 public:
  template <class T>
  ProbabilityDropout(const AttentionProblem<T>& p, i64 b, i64 head) : is_active_(p.dropout.p > 0) {
    if (!is_active_) return;
    key_ = attention_dropout_key(p.dropout, head);
    threshold_ = dropout_threshold(p.dropout.p);
    factor_ = dropout_scale(p.dropout.p);
    sample_ = p.dropout.samples[static_cast<std::size_t>(b)];
    query_at_ = p.query_at, key_at_ = p.key_at;
  }
  bool is_active() const { return is_active_; }

  /// Computes keep[64, 64] = 0 where a probability is dropped, otherwise 1 / (1 - p).
  template <class R>
  void factors(const TileOrigin& at, R* keep) const {
    const hn::ScalableTag<u32> d;
    const i64 lanes = static_cast<i64>(hn::Lanes(d));
    alignas(64) u32 query_positions[kTile];
    for (i64 q = 0; q < kTile; ++q) query_positions[q] = static_cast<u32>(query_at_.at(at.first_query + q));
    const auto position = [&](i64 k) { return key_at_.at(at.first_key + k); };
    for (i64 k = 0, end = 0; k < kTile; k = end) {  // [k, end): keys that share a draw
      while (end < kTile && position(end) / 4 == position(k) / 4) ++end;
      const Philox4 c = dropout_counter(sample_, 0, position(k) / 4);
      for (i64 q = 0; q < kTile; q += lanes) {
        const auto random =
            philox(d, key_, {{hn::Set(d, c[0]), hn::Set(d, c[1]), hn::Load(d, query_positions + q), hn::Set(d, c[3])}});
        for (i64 i = k; i < end; ++i) store_factors(d, random.word[position(i) % 4], keep + i * kTile + q);
      }
    }
  }

 private:
  template <class D>
  HWY_INLINE void store_factors(D d, hn::Vec<D> words, float* keep) const {
    const hn::Rebind<float, D> df;
    const auto kept = hn::Eq(hn::Max(words, hn::Set(d, threshold_)), words);
    hn::StoreU(hn::IfThenElseZero(hn::RebindMask(df, kept), hn::Set(df, static_cast<float>(factor_))), df, keep);
  }
  template <class D>
  HWY_INLINE void store_factors(D d, hn::Vec<D> words, double* keep) const {
    alignas(64) u32 lane[hn::MaxLanes(d)];
    hn::StoreU(words, d, lane);
    for (std::size_t i = 0; i < hn::Lanes(d); ++i) keep[i] = lane[i] >= threshold_ ? factor_ : 0;
  }

  bool is_active_;
  u64 key_ = 0;
  u32 threshold_ = 0;
  double factor_ = 1;
  i64 sample_ = 0;
  PositionRanges query_at_, key_at_;
};

}  // namespace mcpp::kernel::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // MCPP_TENSOR_CPU_ATTENTION_TILE_INL_H_
