// Vector loads and stores that convert between element types and the accumulate type: fp32 for float, BFloat16 and
// Float16, fp64 for double. Compiled once per instruction set, as Highway's *-inl.h headers are.
#if defined(MCPP_TENSOR_CPU_SIMD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MCPP_TENSOR_CPU_SIMD_INL_H_
#undef MCPP_TENSOR_CPU_SIMD_INL_H_
#else
#define MCPP_TENSOR_CPU_SIMD_INL_H_
#endif

#include <cstring>
#include <limits>
#include <type_traits>

#include "hwy/highway.h"
#include "tensor/dtype.h"

HWY_BEFORE_NAMESPACE();
namespace mcpp::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

/// Type in which arithmetic on elements of type T is done.
template <class T>
using Lane = AccumulateType<T>;
/// Highway's tag of a full vector of Lane<T>.
template <class T>
using LaneTag = hn::ScalableTag<Lane<T>>;

/// Active lanes of a vector: all lanes or, at the end of a row, the first `count` lanes. A kernel is written once as a
/// lambda over either type.
struct AllLanes {};
struct FirstLanes {
  std::size_t count;
};

template <class D>
HWY_INLINE hn::Vec<D> load(D d, const hn::TFromD<D>* p, AllLanes) {
  return hn::LoadU(d, p);
}
template <class D>
requires(sizeof(hn::TFromD<D>) == 4) HWY_INLINE hn::Vec<D> load(D d, const BFloat16* p, AllLanes) {
  const hn::Rebind<u32, D> wide;
  const hn::Rebind<u16, D> narrow;
  return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(wide, hn::LoadU(narrow, reinterpret_cast<const u16*>(p)))));
}
// Highway's fallback conversion of halves rounds down on processors without a conversion instruction.
#if HWY_TARGET <= HWY_AVX2
template <class D>
requires(sizeof(hn::TFromD<D>) == 4) HWY_INLINE hn::Vec<D> load(D d, const Float16* p, AllLanes) {
  const hn::Rebind<hwy::float16_t, D> narrow;
  return hn::PromoteTo(d, hn::LoadU(narrow, reinterpret_cast<const hwy::float16_t*>(p)));
}
#else
/// Vectorized form of Float16's conversion.
template <class D>
requires(sizeof(hn::TFromD<D>) == 4) HWY_INLINE hn::Vec<D> load(D d, const Float16* p, AllLanes) {
  const hn::RebindToSigned<D> bits;
  const hn::Rebind<u16, D> narrow;
  const auto x = hn::PromoteTo(bits, hn::LoadU(narrow, reinterpret_cast<const u16*>(p)));
  const auto magnitude = hn::ShiftLeft<13>(hn::And(x, hn::Set(bits, 0x7FFF)));
  const auto scaled = hn::BitCast(bits, hn::Mul(hn::BitCast(d, magnitude), hn::Set(d, 0x1p112f)));
  const auto above = [=](i32 limit, i32 value) HWY_ATTR {
    return hn::IfThenElseZero(hn::Gt(magnitude, hn::Set(bits, limit)), hn::Set(bits, value));
  };
  const auto special = hn::Or(above(0x0F7FFFFF, 0x7F800000), above(0x0F800000, 0x00400000));  // infinity, quiet NaN
  const auto sign = hn::ShiftLeft<16>(hn::AndNot(hn::Set(bits, 0x7FFF), x));
  return hn::BitCast(d, hn::Or(sign, hn::Or(scaled, special)));
}
#endif
template <class D, class T>
requires(sizeof(hn::TFromD<D>) == 8 && sizeof(T) < 8) HWY_INLINE hn::Vec<D> load(D d, const T* p, AllLanes) {
  return hn::PromoteTo(d, load(hn::Rebind<float, D>(), p, AllLanes()));
}

template <class D>
HWY_INLINE void store(hn::Vec<D> v, D d, hn::TFromD<D>* p, AllLanes) {
  hn::StoreU(v, d, p);
}
/// Rounds as BFloat16's constructor does.
template <class D>
requires(sizeof(hn::TFromD<D>) == 4) HWY_INLINE void store(hn::Vec<D> v, D, BFloat16* p, AllLanes) {
  const hn::RebindToUnsigned<D> bits;
  const hn::RebindToSigned<D> integers;
  const hn::Rebind<u16, D> narrow;
  const auto x = hn::BitCast(bits, v);
#if HWY_TARGET <= HWY_AVX3
  // Masked instructions halve the number of instructions.
  if constexpr (hn::MaxLanes(D()) == 16) {
    const __mmask16 is_odd = _mm512_test_epi32_mask(x.raw, _mm512_set1_epi32(0x10000));
    const __mmask16 is_nan = _mm512_cmp_ps_mask(v.raw, v.raw, _CMP_UNORD_Q);
    __m512i y = _mm512_add_epi32(x.raw, _mm512_set1_epi32(0x7FFF));
    y = _mm512_mask_add_epi32(y, is_odd, x.raw, _mm512_set1_epi32(0x8000));
    y = _mm512_mask_or_epi32(y, is_nan, x.raw, _mm512_set1_epi32(0x400000));
    return _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(_mm512_srli_epi32(y, 16)));
  }
#endif
  const auto high = hn::ShiftRight<16>(x);
  const auto last_bit = hn::And(high, hn::Set(bits, 1));
  const auto rounded = hn::ShiftRight<16>(hn::Add(x, hn::Add(last_bit, hn::Set(bits, 0x7FFF))));
  const auto quiet_nan = hn::Or(high, hn::Set(bits, 0x40));
  const auto chosen = hn::IfThenElse(hn::RebindMask(bits, hn::IsNaN(v)), quiet_nan, rounded);
  hn::StoreU(hn::DemoteTo(narrow, hn::BitCast(integers, chosen)), narrow, reinterpret_cast<u16*>(p));
}
#if HWY_TARGET <= HWY_AVX2
template <class D>
requires(sizeof(hn::TFromD<D>) == 4) HWY_INLINE void store(hn::Vec<D> v, D, Float16* p, AllLanes) {
  const hn::Rebind<hwy::float16_t, D> narrow;
  hn::StoreU(hn::DemoteTo(narrow, v), narrow, reinterpret_cast<hwy::float16_t*>(p));
}
#else
/// Vectorized form of the rounding in Float16's constructor.
template <class D>
requires(sizeof(hn::TFromD<D>) == 4) HWY_INLINE void store(hn::Vec<D> v, D d, Float16* p, AllLanes) {
  const hn::RebindToSigned<D> bits;
  const hn::Rebind<u16, D> narrow;
  const auto all = [=](i32 x) HWY_ATTR { return hn::Set(bits, x); };
  const auto x = hn::BitCast(bits, v), magnitude = hn::And(x, all(0x7FFFFFFF));
  const auto fraction = hn::ShiftRight<13>(magnitude);
  const auto normal =
      hn::ShiftRight<13>(hn::Add(hn::Add(magnitude, all(0xFFF - 0x38000000)), hn::And(fraction, all(1))));
  const auto shifted = hn::Add(hn::BitCast(d, magnitude), hn::Set(d, 0.5f));
  const auto subnormal = hn::Sub(hn::BitCast(bits, shifted), all(0x3F000000));
  const auto nan = hn::Or(all(0x7E00), hn::And(fraction, all(0x3FF)));
  const auto finite = hn::IfThenElse(hn::Lt(magnitude, all(0x38800000)), subnormal, normal);
  const auto number = hn::IfThenElse(hn::Lt(magnitude, all(0x477FF000)), finite, all(0x7C00));
  const auto chosen = hn::IfThenElse(hn::Gt(magnitude, all(0x7F800000)), nan, number);
  const auto sign = hn::And(hn::ShiftRight<16>(x), all(0x8000));
  hn::StoreU(hn::DemoteTo(narrow, hn::Or(sign, chosen)), narrow, reinterpret_cast<u16*>(p));
}
#endif
template <class D, class T>
requires(sizeof(hn::TFromD<D>) == 8 && sizeof(T) < 8) HWY_INLINE void store(hn::Vec<D> v, D, T* p, AllLanes) {
  const hn::Rebind<float, D> narrow;
  store(hn::DemoteTo(narrow, v), narrow, p, AllLanes());
}

/// Loads the used lanes; unused lanes read as 0.
template <class D, class T>
HWY_INLINE hn::Vec<D> load(D d, const T* p, FirstLanes part) {
  T buffer[hn::MaxLanes(d)]{};
  std::memcpy(buffer, p, part.count * sizeof(T));
  return load(d, buffer, AllLanes());
}
template <class D, class T>
HWY_INLINE void store(hn::Vec<D> v, D d, T* p, FirstLanes part) {
  T buffer[hn::MaxLanes(d)];
  store(v, d, buffer, AllLanes());
  std::memcpy(p, buffer, part.count * sizeof(T));
}

/// Returns v in used lanes and `other` in the remaining lanes.
template <class D>
HWY_INLINE hn::Vec<D> used_or(D, hn::Vec<D> v, hn::Vec<D>, AllLanes) {
  return v;
}
template <class D>
HWY_INLINE hn::Vec<D> used_or(D d, hn::Vec<D> v, hn::Vec<D> other, FirstLanes part) {
  return hn::IfThenElse(hn::FirstN(d, part.count), v, other);
}

/// Returns beta * p, to which the sum of an output is added; 0 if beta is 0, without reading p.
template <class D, class T>
HWY_INLINE hn::Vec<D> previous(D d, const T* p, float beta, auto lanes) {
  return beta == 0 ? hn::Zero(d) : hn::Mul(hn::Set(d, static_cast<hn::TFromD<D>>(beta)), load(d, p, lanes));
}

/// Calls f(i, lanes) for every vector of [begin, end); the last may be partial.
template <class D, class F>
HWY_INLINE void sweep(D d, i64 begin, i64 end, F&& f) {
  const i64 step = static_cast<i64>(hn::Lanes(d));
  i64 i = begin;
  for (; i + step <= end; i += step) f(i, AllLanes());
  if (i < end) f(i, FirstLanes{static_cast<std::size_t>(end - i)});
}

/// Converts `count` elements of x to fp32.
template <class T>
void widen(const T* x, i64 count, float* to) {
  const hn::ScalableTag<float> d;
  sweep(d, 0, count, [=](i64 i, auto lanes) HWY_ATTR { store(load(d, x + i, lanes), d, to + i, lanes); });
}

/// Calls f(i, lanes, slot) as sweep() does, for reductions: `slot` selects one of four accumulators, so that latencies
/// overlap.
template <class D, class F>
HWY_INLINE void sweep_slots(D d, i64 begin, i64 end, F&& f) {
  const i64 step = static_cast<i64>(hn::Lanes(d));
  i64 i = begin;
  for (; i + 4 * step <= end; i += 4 * step) {
    f(i, AllLanes(), 0);
    f(i + step, AllLanes(), 1);
    f(i + 2 * step, AllLanes(), 2);
    f(i + 3 * step, AllLanes(), 3);
  }
  for (; i + step <= end; i += step) f(i, AllLanes(), 0);
  if (i < end) f(i, FirstLanes{static_cast<std::size_t>(end - i)}, 1);
}

/// Sum kept in four vectors.
template <class D>
struct Sum {
  hn::Vec<D> slots[4];

  HWY_INLINE Sum() {
    for (auto& slot : slots) slot = hn::Zero(D());
  }
  HWY_INLINE void add(hn::Vec<D> v, int slot) { slots[slot] = hn::Add(slots[slot], v); }
  HWY_INLINE void add_product(hn::Vec<D> a, hn::Vec<D> b, int slot) { slots[slot] = hn::MulAdd(a, b, slots[slot]); }
  HWY_INLINE hn::TFromD<D> total() const {
    return hn::GetLane(hn::SumOfLanes(D(), hn::Add(hn::Add(slots[0], slots[1]), hn::Add(slots[2], slots[3]))));
  }
};

/// Returns the largest of `count` elements, or -infinity if there are none. NaN is not reliably detected.
template <class D, class T>
HWY_INLINE hn::TFromD<D> largest_of(D d, const T* x, i64 count) {
  const auto lowest = hn::Set(d, -std::numeric_limits<hn::TFromD<D>>::infinity());
  hn::Vec<D> slots[4] = {lowest, lowest, lowest, lowest};
  sweep_slots(d, 0, count, [&](i64 i, auto lanes, int slot) {
    slots[slot] = hn::Max(slots[slot], used_or(d, load(d, x + i, lanes), lowest, lanes));
  });
  return hn::GetLane(hn::MaxOfLanes(d, hn::Max(hn::Max(slots[0], slots[1]), hn::Max(slots[2], slots[3]))));
}

}  // namespace mcpp::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // MCPP_TENSOR_CPU_SIMD_INL_H_
