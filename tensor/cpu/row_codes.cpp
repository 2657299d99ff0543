#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tensor/cpu/row_codes.cpp"
#include "tensor/ops/low_precision/row_codes.h"

#include <cmath>

#include "hwy/foreach_target.h"
#include "tensor/cpu/simd/parallel.h"
#include "tensor/cpu/simd/simd-inl.h"
#include "tensor/ops/low_precision/float_codes.h"

HWY_BEFORE_NAMESPACE();
namespace mcpp::HWY_NAMESPACE {

using RowTag = LaneTag<BFloat16>;
using RowBits = hn::RebindToSigned<RowTag>;
using RowBytes = hn::Rebind<u8, RowTag>;

constexpr u8 kNanScale = 0xFF;  // E8M0

/// Returns the largest magnitude of a block, which is not finite if a value is not.
float largest_of_block(const BFloat16* x, i64 count) {
  const RowTag d;
  const RowBits bits;
  auto largest = hn::Zero(bits);
  sweep(d, 0, count, [&](i64 i, auto lanes) HWY_ATTR {
    largest = hn::Max(largest, hn::BitCast(bits, hn::Abs(load(d, x + i, lanes))));
  });
  return std::bit_cast<float>(hn::GetLane(hn::MaxOfLanes(bits, largest)));
}

/// Returns the codes of values within the range of the format, rounded to nearest even.
HWY_INLINE hn::Vec<RowBits> codes_of(hn::Vec<RowTag> x, Fp8Format format) {
  const RowTag d;
  const RowBits bits;
  const auto all = [=](i32 number) HWY_ATTR { return hn::Set(bits, number); };
  const int dropped = 23 - fp8_fraction_bits(format), lowest = fp8_min_exponent(format);
  const auto magnitude = hn::Abs(x);
  const auto whole = hn::BitCast(bits, magnitude);
  // Normal values: adds half of the last remaining bit, minus one bit if that is even, and moves the exponent's bias.
  const auto odd = hn::And(hn::ShiftRightSame(whole, dropped), all(1));
  const auto sum = hn::Add(whole, hn::Add(odd, all((1 << (dropped - 1)) - 1)));
  const auto normal = hn::Sub(hn::ShiftRightSame(sum, dropped), all((126 + lowest) << fp8_fraction_bits(format)));
  // Subnormal values: multiples of the smallest value, which is the last bit of this power of two in fp32.
  const float shift = power_of_two(lowest - fp8_fraction_bits(format) + 23);
  const auto subnormal = hn::And(hn::BitCast(bits, hn::Add(magnitude, hn::Set(d, shift))), all(0xFF));
  const auto is_subnormal = hn::RebindMask(bits, hn::Lt(magnitude, hn::Set(d, power_of_two(lowest))));
  const auto sign = hn::And(hn::ShiftRight<24>(hn::BitCast(bits, x)), all(0x80));
  return hn::Or(hn::IfThenElse(is_subnormal, subnormal, normal), sign);
}

/// Returns the values of finite codes.
HWY_INLINE hn::Vec<RowTag> values_of(hn::Vec<RowBits> codes, Fp8Format format) {
  const RowTag d;
  const RowBits bits;
  const int fraction = fp8_fraction_bits(format), dropped = 23 - fraction, lowest = fp8_min_exponent(format);
  const auto magnitude = hn::And(codes, hn::Set(bits, 0x7F));
  const auto normal =
      hn::BitCast(d, hn::Add(hn::ShiftLeftSame(magnitude, dropped), hn::Set(bits, (126 + lowest) << 23)));
  const auto subnormal = hn::Mul(hn::ConvertTo(d, magnitude), hn::Set(d, power_of_two(lowest - fraction)));
  const auto is_subnormal = hn::RebindMask(d, hn::Lt(magnitude, hn::Set(bits, 1 << fraction)));
  const auto sign = hn::ShiftLeft<24>(hn::And(codes, hn::Set(bits, 0x80)));
  return hn::Or(hn::IfThenElse(is_subnormal, subnormal, normal), hn::BitCast(d, sign));
}

HWY_INLINE void store_codes(hn::Vec<RowBits> codes, u8* to, AllLanes) {
  const RowBytes bytes;
  hn::StoreU(hn::DemoteTo(bytes, codes), bytes, to);
}
HWY_INLINE void store_codes(hn::Vec<RowBits> codes, u8* to, FirstLanes part) {
  u8 buffer[hn::MaxLanes(RowTag())];
  store_codes(codes, buffer, AllLanes());
  std::memcpy(to, buffer, part.count);
}
HWY_INLINE hn::Vec<RowBits> load_codes(const u8* from, AllLanes) {
  return hn::PromoteTo(RowBits(), hn::LoadU(RowBytes(), from));
}
HWY_INLINE hn::Vec<RowBits> load_codes(const u8* from, FirstLanes part) {
  u8 buffer[hn::MaxLanes(RowTag())]{};
  std::memcpy(buffer, from, part.count);
  return load_codes(buffer, AllLanes());
}

/// Encodes a block and returns its scale.
u8 encode_block(const BFloat16* x, i64 count, Fp8Format format, u8* codes) {
  const float largest = largest_of_block(x, count), scale = fp8_scale(format, largest);
  if (std::isnan(scale)) {
    std::memset(codes, kFp8Nan, static_cast<std::size_t>(count));
    return kNanScale;
  }
  const RowTag d;
  const auto factor = hn::Set(d, scale);
  sweep(d, 0, count, [&](i64 i, auto lanes) HWY_ATTR {
    store_codes(codes_of(hn::Mul(load(d, x + i, lanes), factor), format), codes + i, lanes);
  });
  const int exponent = static_cast<int>(std::bit_cast<u32>(scale) >> 23) - 127;
  return static_cast<u8>(127 - exponent);
}

void decode_block(const u8* codes, i64 count, Fp8Format format, float unscale, BFloat16* x) {
  const RowTag d;
  const auto factor = hn::Set(d, unscale);
  sweep(d, 0, count, [&](i64 i, auto lanes) HWY_ATTR {
    store(hn::Mul(values_of(load_codes(codes + i, lanes), format), factor), d, x + i, lanes);
  });
}

/// Calls f(elements of a row, its codes, its scales) for all rows.
template <class F>
void for_each_row(const Tensor& x, const RowEncoding& encoding, const Tensor& codes, const F& f) {
  const i64 columns = x.dim(1), words = encoding.words(columns);
  auto* values = x.data<BFloat16>();
  auto* bytes = reinterpret_cast<u8*>(codes.data<i32>());
  parallel_for(cpu(x), x.dim(0), rows_per_chunk(columns), [&](i64 begin, i64 end) {
    for (i64 row = begin; row < end; ++row) {
      u8* row_codes = bytes + row * words * 4;
      f(values + row * columns, row_codes, row_codes + encoding.code_words(columns) * 4);
    }
  });
}

void encode_rows(const Tensor& x, const RowEncoding& encoding, Tensor& codes) {
  const i64 columns = x.dim(1), words = encoding.words(columns);
  for_each_row(x, encoding, codes, [&](const BFloat16* row, u8* bytes, u8* scales) {
    for (i64 first = 0; first < columns; first += encoding.block)
      *scales++ = encode_block(row + first, std::min(encoding.block, columns - first), encoding.format, bytes + first);
    std::fill(bytes + columns, bytes + encoding.code_words(columns) * 4, u8{0});
    std::fill(scales, bytes + words * 4, u8{0});
  });
}

void decode_rows(const Tensor& codes, const RowEncoding& encoding, Tensor& x) {
  const i64 columns = x.dim(1);
  for_each_row(x, encoding, codes, [&](BFloat16* row, const u8* bytes, const u8* scales) {
    for (i64 first = 0; first < columns; first += encoding.block)
      decode_block(bytes + first, std::min(encoding.block, columns - first), encoding.format, from_e8m0(*scales++),
                   row + first);
  });
}

}  // namespace mcpp::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mcpp {

HWY_EXPORT(encode_rows);
HWY_EXPORT(decode_rows);

template <>
void RowCodeKernels<DeviceType::Cpu>::encode_rows(const Tensor& x, const RowEncoding& encoding, Tensor& codes) {
  HWY_DYNAMIC_DISPATCH(encode_rows)(x, encoding, codes);
}

template <>
void RowCodeKernels<DeviceType::Cpu>::decode_rows(const Tensor& codes, const RowEncoding& encoding, Tensor& x) {
  HWY_DYNAMIC_DISPATCH(decode_rows)(codes, encoding, x);
}

}  // namespace mcpp
#endif  // HWY_ONCE
