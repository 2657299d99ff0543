// Vectorized Philox4x32-10 (base/philox.h), and the dropout factors derived from it.
#if defined(MCPP_TENSOR_CPU_PHILOX_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MCPP_TENSOR_CPU_PHILOX_INL_H_
#undef MCPP_TENSOR_CPU_PHILOX_INL_H_
#else
#define MCPP_TENSOR_CPU_PHILOX_INL_H_
#endif

#include "tensor/cpu/simd/simd-inl.h"
#include "tensor/ops/dropout.h"

HWY_BEFORE_NAMESPACE();
namespace mcpp::HWY_NAMESPACE {

/// Counters of Philox, one per 64-bit lane. Word j is in the low half of the lane of the j-th vector; the upper halves
/// are ignored.
using PhiloxTag = hn::ScalableTag<u64>;
struct PhiloxCounters {
  hn::Vec<PhiloxTag> words0, words1, words2, words3;
};

HWY_INLINE hn::Vec<PhiloxTag> multiply_low_halves(hn::Vec<PhiloxTag> a, hn::Vec<PhiloxTag> b) {
  const hn::Repartition<u32, PhiloxTag> halves;
  return hn::MulEven(hn::BitCast(halves, a), hn::BitCast(halves, b));
}

/// Writes philox4x32(key, counter) of each counter, in the order of lanes, four words each.
HWY_INLINE void store_philox_blocks(u64 key, const PhiloxCounters& counters, u32* out) {
  const PhiloxTag d;
  auto c0 = counters.words0, c1 = counters.words1, c2 = counters.words2, c3 = counters.words3;
  const auto m0 = hn::Set(d, 0xD2511F53), m1 = hn::Set(d, 0xCD9E8D57);
  u32 k0 = static_cast<u32>(key), k1 = static_cast<u32>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const auto p0 = multiply_low_halves(c0, m0), p1 = multiply_low_halves(c2, m1);
    c0 = hn::Xor(hn::ShiftRight<32>(p1), hn::Xor(c1, hn::Set(d, k0)));
    c2 = hn::Xor(hn::ShiftRight<32>(p0), hn::Xor(c3, hn::Set(d, k1)));
    c1 = p1;
    c3 = p0;
    k0 += 0x9E3779B9, k1 += 0xBB67AE85;
  }
  const auto low = hn::Set(d, 0xFFFFFFFF);
  const auto first_pair = hn::Or(hn::And(c0, low), hn::ShiftLeft<32>(c1));
  const auto second_pair = hn::Or(hn::And(c2, low), hn::ShiftLeft<32>(c3));
  hn::StoreInterleaved2(first_pair, second_pair, d, reinterpret_cast<u64*>(out));
}

/// Random words of one row: word(j) is word j % 4 of Philox(key, {counter[0..2], j / 4}). Holds a window of kCapacity
/// elements at a time.
class RandomRow {
 public:
  static constexpr i64 kCapacity = 512;

  RandomRow(u64 key, const Philox4& counter) : key_(key), counter_(counter) {}

  /// Generates the words of elements first .. first + count - 1 (count <= kCapacity) and returns a pointer to the
  /// first. Callers may read one vector past the last element.
  HWY_INLINE const u32* window(i64 first, i64 count) {
    const i64 begin = first / 4, end = (first + count + 3) / 4;
    const i64 step = static_cast<i64>(hn::Lanes(PhiloxTag()));
    for (i64 block = begin; block < end; block += step) make_blocks(block, words_ + 4 * (block - begin));
    return words_ + first % 4;
  }

 private:
  HWY_INLINE void make_blocks(i64 first, u32* out) const {
    const PhiloxTag d;
    store_philox_blocks(key_,
                        {hn::Set(d, counter_[0]), hn::Set(d, counter_[1]), hn::Set(d, counter_[2]),
                         hn::Iota(d, static_cast<u64>(first))},
                        out);
  }

  u64 key_;
  Philox4 counter_;
  // Includes space for the first block's skipped words, the last vector of blocks, and reads past the end.
  HWY_ALIGN u32 words_[kCapacity + 4 + 8 * hn::MaxLanes(hn::ScalableTag<u32>())];
};

/// Loads random words into the lanes of an unsigned vector, 32 or 64 bits wide.
template <class U>
HWY_INLINE hn::Vec<U> words_in_lanes(U bits, const u32* words) {
  if constexpr (sizeof(hn::TFromD<U>) == 4)
    return hn::LoadU(bits, words);
  else
    return hn::PromoteTo(bits, hn::LoadU(hn::Rebind<u32, U>(), words));
}

/// Jitter factors. Only the upper 24 bits of a word are used, so that all types get the same factors.
template <class D>
struct JitterFactor {
  hn::TFromD<D> lowest, step;

  explicit JitterFactor(float p)
      : lowest(static_cast<hn::TFromD<D>>(jitter_lowest(p))), step(static_cast<hn::TFromD<D>>(jitter_step(p))) {}

  HWY_INLINE hn::Vec<D> of(D d, const u32* words) const {
    const hn::RebindToSigned<D> integers;
    const hn::RebindToUnsigned<D> bits;
    const auto steps = hn::BitCast(integers, hn::ShiftRight<8>(words_in_lanes(bits, words)));
    return hn::MulAdd(hn::ConvertTo(d, steps), hn::Set(d, step), hn::Set(d, lowest));
  }
};

/// Dropout factors.
template <class D>
struct DropoutFactor {
  u32 threshold;
  hn::TFromD<D> scale;

  explicit DropoutFactor(float p)
      : threshold(dropout_threshold(p)), scale(static_cast<hn::TFromD<D>>(dropout_scale(p))) {}

  /// Returns `scale` in lanes kept according to their random words, otherwise 0.
  HWY_INLINE hn::Vec<D> of(D d, const u32* words) const {
    const hn::RebindToUnsigned<D> bits;
    const auto drop = hn::Lt(words_in_lanes(bits, words), hn::Set(bits, threshold));
    return hn::IfThenZeroElse(hn::RebindMask(d, drop), hn::Set(d, scale));
  }
};

}  // namespace mcpp::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // MCPP_TENSOR_CPU_PHILOX_INL_H_
