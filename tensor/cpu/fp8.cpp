// Emulation of fp8 on the CPU: values are rounded to fp8 and stored in bf16, which represents them exactly.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tensor/cpu/fp8.cpp"
#include "tensor/ops/low_precision/fp8.h"

#include "hwy/foreach_target.h"
#include "tensor/cpu/simd/parallel.h"
#include "tensor/cpu/simd/simd-inl.h"
#include "tensor/ops/kernels.h"

HWY_BEFORE_NAMESPACE();
namespace mcpp::HWY_NAMESPACE {

/// Returns the largest of `count` bit patterns without their signs. As integers they are ordered by magnitude, with
/// infinity and NaN above all finite values.
u16 largest_magnitude(const u16* x, i64 count) {
  const hn::ScalableTag<u16> d;
  const auto magnitudes = hn::Set(d, 0x7FFF);
  const auto lanes = static_cast<i64>(hn::Lanes(d));
  auto largest = hn::Zero(d);
  i64 i = 0;
  for (; i + lanes <= count; i += lanes) largest = hn::Max(largest, hn::And(hn::LoadU(d, x + i), magnitudes));
  u16 all[hn::MaxLanes(d)], max_bits = 0;
  hn::StoreU(largest, d, all);
  for (i64 lane = 0; lane < lanes; ++lane) max_bits = std::max(max_bits, all[lane]);
  for (; i < count; ++i) max_bits = std::max(max_bits, static_cast<u16>(x[i] & 0x7FFF));
  return max_bits;
}

void add_amax(const Tensor& x, Tensor& amax) {
  std::vector<u16> chunks(static_cast<std::size_t>(ceil_div(x.numel(), kElementsPerChunk)), 0);
  const auto* bits = static_cast<const u16*>(x.raw());
  parallel_for(cpu(x), x.numel(), kElementsPerChunk, [&](i64 begin, i64 end) {
    chunks[static_cast<std::size_t>(begin / kElementsPerChunk)] = largest_magnitude(bits + begin, end - begin);
  });
  constexpr u32 kInfinity = 0x7F80;
  u32 largest = 0;
  for (const u16 chunk : chunks) largest = std::max<u32>(largest, chunk);
  float& sum = *amax.data<float>();
  sum = std::max(sum, std::bit_cast<float>(std::min(largest, kInfinity) << 16));
}

/// Rounds to the nearest value of a format, ties to even, saturating at the maximum. NaN and infinities become NaN.
template <class D>
HWY_INLINE hn::Vec<D> nearest_fp8(D d, hn::Vec<D> x, Fp8Format format) {
  const hn::RebindToUnsigned<D> bits;
  const auto magnitude = hn::Abs(x);
  // Normal values: adds half of the last remaining bit, minus one bit if that is even.
  const int dropped = 23 - fp8_fraction_bits(format);
  const u32 last = u32{1} << dropped;
  const auto all = hn::BitCast(bits, magnitude);
  const auto odd = hn::And(hn::ShiftRightSame(all, dropped), hn::Set(bits, 1));
  const auto sum = hn::Add(all, hn::Add(odd, hn::Set(bits, last / 2 - 1)));
  const auto normal = hn::BitCast(d, hn::And(sum, hn::Set(bits, ~(last - 1))));
  // Subnormal values: multiples of the smallest value, which is the last bit of this power of two in fp32.
  const int min_exponent = fp8_min_exponent(format);
  const auto shift = hn::Set(d, power_of_two(min_exponent - fp8_fraction_bits(format) + 23));
  const auto subnormal = hn::Sub(hn::Add(magnitude, shift), shift);
  const auto rounded = hn::IfThenElse(hn::Lt(magnitude, hn::Set(d, power_of_two(min_exponent))), subnormal, normal);
  const auto signed_result = hn::CopySign(hn::Min(rounded, hn::Set(d, fp8_max(format))), x);
  const auto is_number = hn::Lt(magnitude, hn::Inf(d));
  return hn::IfThenElse(is_number, signed_result, hn::NaN(d));
}

/// Factor of each lane before rounding, and its inverse.
template <class D>
struct Factors {
  hn::Vec<D> scale, unscale;
};

/// Vectorized form of fp8_scale(). `magnitudes` are bits of fp32 values without signs.
template <class D>
HWY_INLINE Factors<D> factors_of(D d, hn::Vec<hn::RebindToSigned<D>> magnitudes, Fp8Format format) {
  const hn::RebindToSigned<D> bits;
  const auto all = [=](i32 x) HWY_ATTR { return hn::Set(bits, x); };
  const auto exponent = hn::ShiftRight<23>(magnitudes), fraction = hn::And(magnitudes, all(0x7FFFFF));
  const auto is_above = hn::VecFromMask(bits, hn::Gt(fraction, all(0x600000)));  // -1 if true
  const auto largest = all(fp8_max_exponent(format) + 127);
  const auto power = hn::Min(hn::Add(hn::Sub(largest, exponent), is_above), all(kMaxFp8ScaleExponent));
  const auto scale = hn::BitCast(d, hn::ShiftLeft<23>(hn::Add(power, all(127))));
  const auto unscale = hn::BitCast(d, hn::ShiftLeft<23>(hn::Sub(all(127), power)));
  const auto is_finite = hn::RebindMask(d, hn::Lt(exponent, all(255)));
  return {hn::IfThenElse(is_finite, scale, hn::NaN(d)), unscale};
}

/// bf16 matrix that is rounded into another of the same shape.
struct BlockTask {
  const BFloat16* from;
  BFloat16* to;
  i64 rows, columns;
  BlockShape block;
  Fp8Format format;

  i64 at(i64 row, i64 column) const { return row * columns + column; }
};

template <class D>
HWY_INLINE void round_vector(D d, const BlockTask& task, i64 i, const Factors<D>& factors, auto lanes) {
  const auto scaled = hn::Mul(load(d, task.from + i, lanes), factors.scale);
  store(hn::Mul(nearest_fp8(d, scaled, task.format), factors.unscale), d, task.to + i, lanes);
}

/// Rounds the rows [first, end) of blocks with one column: each lane holds a block.
void round_column_blocks(const BlockTask& task, i64 first, i64 end) {
  const LaneTag<BFloat16> d;
  const hn::RebindToSigned<LaneTag<BFloat16>> bits;
  sweep(d, 0, task.columns, [&](i64 column, auto lanes) {
    auto largest = hn::Zero(bits);
    for (i64 row = first; row < end; ++row) {
      const auto x = hn::Abs(load(d, task.from + task.at(row, column), lanes));
      largest = hn::Max(largest, hn::BitCast(bits, x));
    }
    const auto factors = factors_of(d, largest, task.format);
    for (i64 row = first; row < end; ++row) round_vector(d, task, task.at(row, column), factors, lanes);
  });
}

/// Rounds the rows [first, end) of blocks with several columns.
void round_wide_blocks(const BlockTask& task, i64 first, i64 end) {
  const LaneTag<BFloat16> d;
  const hn::RebindToSigned<LaneTag<BFloat16>> bits;
  for (i64 column = 0; column < task.columns; column += task.block.columns) {
    const i64 count = std::min(task.block.columns, task.columns - column);
    i32 largest = 0;
    for (i64 row = first; row < end; ++row) {
      const auto* x = reinterpret_cast<const u16*>(task.from + task.at(row, column));
      largest = std::max<i32>(largest, largest_magnitude(x, count));
    }
    const auto factors = factors_of(d, hn::Set(bits, largest << 16), task.format);
    for (i64 row = first; row < end; ++row)
      sweep(d, task.at(row, column), task.at(row, column) + count,
            [&](i64 i, auto lanes) { round_vector(d, task, i, factors, lanes); });
  }
}

void round_blocks(const Tensor& x, const Fp8Scale& scale, Tensor& y) {
  const BlockTask task{x.data<BFloat16>(), y.data<BFloat16>(), x.dim(0), x.dim(1), scale.block, scale.format};
  const i64 height = task.block.rows, bands = ceil_div(task.rows, height);
  parallel_for(cpu(x), bands, rows_per_chunk(height * task.columns), [&](i64 begin, i64 end) {
    for (i64 band = begin; band < end; ++band) {
      const i64 first = band * height, last = std::min(first + height, task.rows);
      task.block.columns == 1 ? round_column_blocks(task, first, last) : round_wide_blocks(task, first, last);
    }
  });
}

void round_to_fp8(const Tensor& x, const Fp8Scale& scale, Tensor& y) {
  if (scale.block.is_defined()) return round_blocks(x, scale, y);
  const LaneTag<BFloat16> d;
  const float factor = fp8_scale(scale.format, *scale.amax.data<float>());
  const BFloat16* from = x.data<BFloat16>();
  BFloat16* to = y.data<BFloat16>();
  parallel_for(cpu(x), x.numel(), kElementsPerChunk, [=, format = scale.format](i64 begin, i64 end) {
    sweep(d, begin, end, [=](i64 i, auto lanes) {
      const auto scaled = hn::Mul(load(d, from + i, lanes), hn::Set(d, factor));
      store(hn::Mul(nearest_fp8(d, scaled, format), hn::Set(d, 1 / factor)), d, to + i, lanes);
    });
  });
}

}  // namespace mcpp::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mcpp {

HWY_EXPORT(add_amax);
HWY_EXPORT(round_to_fp8);

template <>
void Fp8Kernels<DeviceType::Cpu>::add_amax(const Tensor& x, Tensor& amax) {
  HWY_DYNAMIC_DISPATCH(add_amax)(x, amax);
}

template <>
void Fp8Kernels<DeviceType::Cpu>::round_to_fp8(const Tensor& x, const Fp8Scale& scale, Tensor& y) {
  HWY_DYNAMIC_DISPATCH(round_to_fp8)(x, scale, y);
}

template <>
void Fp8Kernels<DeviceType::Cpu>::matmul(const Tensor& a, const Fp8Scale& a_scale, const Tensor& b,
                                         const Fp8Scale& b_scale, Tensor& c, const ops::MatmulOptions& options) {
  const auto rounded = [](const Tensor& x, const Fp8Scale& scale) {
    Tensor y = Tensor::empty(x.shape(), x.dtype(), x.device(), MemoryClass::Workspace);
    round_to_fp8(x, scale, y);
    return y;
  };
  Kernels<DeviceType::Cpu>::matmul(rounded(a, a_scale), rounded(b, b_scale), c, options);
}

template <>
std::string Fp8Kernels<DeviceType::Cpu>::problem(const Device&) {
  return "";
}

}  // namespace mcpp
#endif  // HWY_ONCE
