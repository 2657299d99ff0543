#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tensor/cpu/normal_draws.cpp"
#include "tensor/cpu/normal_draws.h"

#include <algorithm>

#include "base/normal_quantile.h"
#include "base/philox.h"
#include "hwy/foreach_target.h"
#include "tensor/cpu/simd/philox-inl.h"

HWY_BEFORE_NAMESPACE();
namespace mcpp::HWY_NAMESPACE {

// Vectorized normal_quantile(). A lane has the same operations in the same order as the scalar form, and the compiler
// does not contract them, so results are bitwise identical.

using Doubles = hn::ScalableTag<double>;
using DoubleVec = hn::Vec<Doubles>;

template <std::size_t N>
HWY_INLINE DoubleVec polynomial(const double (&coefficients)[N], DoubleVec x) {
  const Doubles d;
  DoubleVec y = hn::Set(d, coefficients[0]);
  for (std::size_t i = 1; i < N; ++i) y = hn::Add(hn::Mul(y, x), hn::Set(d, coefficients[i]));
  return y;
}

/// Converts unsigned integers below 2^52 exactly.
HWY_INLINE DoubleVec to_double(hn::Vec<PhiloxTag> integers) {
  const Doubles d;
  const hn::RebindToUnsigned<Doubles> bits;
  const auto shifted = hn::Or(hn::BitCast(bits, integers), hn::Set(bits, 0x4330000000000000));  // 2^52 + integer
  return hn::Sub(hn::BitCast(d, shifted), hn::Set(d, 0x1p52));
}

HWY_INLINE DoubleVec logarithm(DoubleVec x) {
  const Doubles d;
  const hn::RebindToUnsigned<Doubles> integers;
  const auto bits = hn::BitCast(integers, x);
  auto exponent = hn::Sub(to_double(hn::ShiftRight<52>(bits)), hn::Set(d, 1023));
  const auto fraction = hn::And(bits, hn::Set(integers, 0x000FFFFFFFFFFFFF));
  auto mantissa = hn::BitCast(d, hn::Or(fraction, hn::Set(integers, 0x3FF0000000000000)));
  const auto is_large = hn::Gt(mantissa, hn::Set(d, kSqrt2));
  mantissa = hn::IfThenElse(is_large, hn::Mul(mantissa, hn::Set(d, 0.5)), mantissa);
  exponent = hn::IfThenElse(is_large, hn::Add(exponent, hn::Set(d, 1)), exponent);
  const auto one = hn::Set(d, 1);
  const auto t = hn::Div(hn::Sub(mantissa, one), hn::Add(mantissa, one)), t2 = hn::Mul(t, t);
  DoubleVec series = hn::Set(d, 1.0 / kAtanhTerms);
  for (int k = kAtanhTerms - 2; k >= 1; k -= 2) series = hn::Add(hn::Mul(series, t2), hn::Set(d, 1.0 / k));
  return hn::Add(hn::Mul(hn::Mul(hn::Set(d, 2), t), series), hn::Mul(exponent, hn::Set(d, kLn2)));
}

// The root for the smallest p, of a random word 0, is sqrt(33 ln 2) = 4.8, so the coefficients beyond kFarTail are
// never needed.
static_assert(33 * kLn2 < kFarTail * kFarTail);

/// Returns the quantiles of p for |p - 0.5| > kCentralQuantile.
HWY_INLINE DoubleVec tail_quantile(DoubleVec p) {
  const Doubles d;
  const auto one = hn::Set(d, 1);
  const auto is_low = hn::Lt(hn::Sub(p, hn::Set(d, 0.5)), hn::Zero(d));
  const auto root = hn::Sqrt(hn::Neg(logarithm(hn::IfThenElse(is_low, p, hn::Sub(one, p)))));
  const auto r = hn::Sub(root, hn::Set(d, kTailOffset));
  const auto x = hn::Div(polynomial(kTailNumerator, r), polynomial(kTailDenominator, r));
  return hn::IfThenElse(is_low, hn::Neg(x), x);
}

HWY_INLINE DoubleVec central_quantile(DoubleVec q) {
  const Doubles d;
  const auto r = hn::Sub(hn::Set(d, kCentralOffset), hn::Mul(q, q));
  return hn::Div(hn::Mul(q, polynomial(kCentralNumerator, r)), polynomial(kCentralDenominator, r));
}

/// Computes a block of quantiles. Values in the tails, which take longer and are rarer, are collected and computed
/// together.
class QuantileBlock {
 public:
  static constexpr i64 kCapacity = 512;

  /// Writes the quantiles of `count` words, at most kCapacity. Reads up to one vector of words past the last.
  HWY_INLINE void compute(const u32* words, i64 count, double* out) {
    const Doubles d;
    const auto lanes = static_cast<i64>(hn::Lanes(d));
    for (i64 i = 0; i < count; i += lanes) {
      const auto p = uniform(words + i), q = hn::Sub(p, hn::Set(d, 0.5));
      hn::StoreU(p, d, p_ + i);
      hn::StoreU(central_quantile(q), d, quantiles_ + i);
    }
    compute_tails(count);
    std::copy_n(quantiles_, count, out);
  }

 private:
  /// uniform_open() of each word.
  HWY_INLINE static DoubleVec uniform(const u32* words) {
    const Doubles d;
    const auto value = to_double(words_in_lanes(PhiloxTag(), words));
    return hn::Mul(hn::Add(value, hn::Set(d, 0.5)), hn::Set(d, 0x1p-32));
  }

  HWY_INLINE void compute_tails(i64 count) {
    const Doubles d;
    i64 tails = 0;
    for (i64 i = 0; i < count; ++i) {
      indices_[tails] = static_cast<i32>(i);
      tail_[tails] = p_[i];
      const double q = p_[i] - 0.5;
      tails += (q < 0 ? -q : q) > kCentralQuantile;
    }
    const auto lanes = static_cast<i64>(hn::Lanes(d));
    std::fill_n(tail_ + tails, lanes, 0.01);  // any value in a tail
    for (i64 i = 0; i < tails; i += lanes) hn::StoreU(tail_quantile(hn::LoadU(d, tail_ + i)), d, tail_ + i);
    for (i64 i = 0; i < tails; ++i) quantiles_[indices_[i]] = tail_[i];
  }

  static constexpr i64 kSize = kCapacity + static_cast<i64>(hn::MaxLanes(Doubles()));
  HWY_ALIGN double p_[kSize], quantiles_[kSize], tail_[kSize];
  i32 indices_[kSize];
};

void draw_normal(u64 key, u64 first, std::span<double> out) {
  const PhiloxTag d;
  constexpr i64 kWords = QuantileBlock::kCapacity;
  HWY_ALIGN u32 words[kWords + 4 + 8 * hn::MaxLanes(hn::ScalableTag<u32>())];
  QuantileBlock block;
  const auto count = static_cast<i64>(out.size());
  for (i64 done = 0; done < count; done += kWords) {
    const u64 index = first + static_cast<u64>(done), begin = index / 4;
    const i64 part = std::min(kWords, count - done);
    const u64 end = (index + static_cast<u64>(part) + 3) / 4;
    for (u64 b = begin; b < end; b += hn::Lanes(d)) {
      const auto number = hn::Add(hn::Iota(d, 0), hn::Set(d, b));
      store_philox_blocks(key, {number, hn::ShiftRight<32>(number), hn::Zero(d), hn::Zero(d)}, words + 4 * (b - begin));
    }
    block.compute(words + index % 4, part, out.data() + done);
  }
}

}  // namespace mcpp::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mcpp {

HWY_EXPORT(draw_normal);

void draw_normal(u64 key, u64 first, std::span<double> out) {
  HWY_DYNAMIC_DISPATCH(draw_normal)(key, first, out);
}

}  // namespace mcpp
#endif
