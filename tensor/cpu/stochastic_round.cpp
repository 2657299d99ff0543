#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tensor/cpu/stochastic_round.cpp"
#include "tensor/ops/low_precision/stochastic_round.h"

#include <algorithm>

#include "hwy/foreach_target.h"
#include "tensor/cpu/simd/parallel.h"
#include "tensor/cpu/simd/philox-inl.h"

HWY_BEFORE_NAMESPACE();
namespace mcpp::HWY_NAMESPACE {

/// Rounds `count` elements with these random words. Reads up to one vector of words past the last element.
void round_elements(const u32* x, const u32* words, i64 count, u16* y) {
  const hn::ScalableTag<u32> d;
  const hn::Rebind<u16, decltype(d)> halves;
  const hn::RebindToSigned<decltype(d)> integers;
  const auto lanes = static_cast<i64>(hn::Lanes(d));
  const auto exponent = hn::Set(d, 0x7F800000), fraction = hn::Set(d, 0x7FFFFF), zero = hn::Zero(d);
  i64 i = 0;
  for (; i + lanes <= count; i += lanes) {
    const auto bits = hn::LoadU(d, x + i), random = hn::ShiftRight<16>(hn::LoadU(d, words + i));
    const auto is_special = hn::Eq(hn::And(bits, exponent), exponent);
    const auto is_nan = hn::And(is_special, hn::Ne(hn::And(bits, fraction), zero));
    const auto quiet = hn::IfThenElseZero(is_nan, hn::Set(d, 0x400000));
    const auto rounded = hn::IfThenElse(is_special, hn::Or(bits, quiet), hn::Add(bits, random));
    hn::StoreU(hn::DemoteTo(halves, hn::BitCast(integers, hn::ShiftRight<16>(rounded))), halves, y + i);
  }
  for (; i < count; ++i) y[i] = stochastic_bf16(x[i], words[i] >> 16);
}

/// Rounds columns [begin, end) of row `row` of a box.
void round_row(u64 key, const StochasticRows& rows, i64 row, i64 begin, i64 end, const u32* x, u16* y) {
  const auto global = static_cast<u64>(rows.global_row(row));
  RandomRow random(key, {static_cast<u32>(global), static_cast<u32>(global >> 32), 0, 0});
  for (i64 at = begin; at < end; at += RandomRow::kCapacity) {
    const i64 count = std::min(RandomRow::kCapacity, end - at);
    const u32* words = random.window(rows.first_column + at, count);
    round_elements(x + (at - begin), words, count, y + (at - begin));
  }
}

void stochastic_round(const Tensor& x, const StochasticElements& elements, Tensor& y) {
  const StochasticRows rows = stochastic_rows(elements);
  const i64 first = elements.first, width = rows.width;
  const auto* from = static_cast<const u32*>(x.raw());
  auto* to = static_cast<u16*>(y.raw());
  parallel_for(cpu(x), x.numel(), kElementsPerChunk, [&](i64 begin, i64 end) {
    for (i64 i = begin; i < end;) {
      const i64 row = (first + i) / width, column = (first + i) % width, count = std::min(width - column, end - i);
      round_row(elements.key, rows, row, column, column + count, from + i, to + i);
      i += count;
    }
  });
}

}  // namespace mcpp::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mcpp {

HWY_EXPORT(stochastic_round);

template <>
void StochasticRoundKernels<DeviceType::Cpu>::stochastic_round(const Tensor& x, const StochasticElements& elements,
                                                               Tensor& y) {
  HWY_DYNAMIC_DISPATCH(stochastic_round)(x, elements, y);
}

}  // namespace mcpp
#endif  // HWY_ONCE
