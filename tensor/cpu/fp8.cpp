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

void round_to_fp8(const Tensor& x, const Fp8Scale& scale, Tensor& y) {
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
