#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tensor/cpu/quantize.cpp"
#include "tensor/ops/low_precision/quantize.h"

#include "hwy/foreach_target.h"
#include "tensor/cpu/simd/parallel.h"
#include "tensor/cpu/simd/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace mcpp::HWY_NAMESPACE {

constexpr i64 kBlocksPerChunk = kElementsPerChunk / kQuantizedBlock;

/// Returns for each lane the number of ascending limits below its value.
template <class D>
HWY_INLINE hn::Vec<hn::RebindToSigned<D>> find_indices(D d, hn::Vec<D> x, const float* limits) {
  const hn::RebindToSigned<D> integers;
  auto index = hn::Zero(integers);
  for (i32 half = 128; half > 0; half /= 2) {
    const auto middle = hn::GatherIndex(d, limits, hn::Add(index, hn::Set(integers, half - 1)));
    const auto above = hn::RebindMask(integers, hn::Gt(x, middle));
    index = hn::Add(index, hn::IfThenElseZero(above, hn::Set(integers, half)));
  }
  return index;
}

/// Quantizes a block and returns its scale.
float quantize_block(const float* x, u8* codes, const float* limits, i32 min_index) {
  const LaneTag<float> d;
  const hn::RebindToSigned<decltype(d)> integers;
  const hn::Rebind<u8, decltype(d)> bytes;
  const auto lanes = static_cast<i64>(hn::Lanes(d));
  auto largest = hn::Zero(d);
  for (i64 i = 0; i < kQuantizedBlock; i += lanes) largest = hn::Max(largest, hn::Abs(hn::LoadU(d, x + i)));
  const float magnitude = hn::GetLane(hn::MaxOfLanes(d, largest));
  const float scale = magnitude < kMinScale ? 0 : magnitude;
  const auto divisor = hn::Set(d, scale > 0 ? scale : std::numeric_limits<float>::infinity());
  for (i64 i = 0; i < kQuantizedBlock; i += lanes) {
    const auto value = hn::Div(hn::LoadU(d, x + i), divisor);
    const auto index = find_indices(d, value, limits);
    const auto min_of_positive =
        hn::IfThenElseZero(hn::RebindMask(integers, hn::Gt(value, hn::Zero(d))), hn::Set(integers, min_index));
    hn::StoreU(hn::DemoteTo(bytes, hn::Max(index, min_of_positive)), bytes, codes + i);
  }
  return scale;
}

void dequantize_block(const u8* codes, float scale, float* x, const float* values) {
  const LaneTag<float> d;
  const hn::RebindToSigned<decltype(d)> integers;
  const hn::Rebind<u8, decltype(d)> bytes;
  for (i64 i = 0; i < kQuantizedBlock; i += static_cast<i64>(hn::Lanes(d))) {
    const auto index = hn::PromoteTo(integers, hn::LoadU(bytes, codes + i));
    hn::StoreU(hn::Mul(hn::GatherIndex(d, values, index), hn::Set(d, scale)), d, x + i);
  }
}

void quantize(const Tensor& x, Quantized& to) {
  const QuantizedValues limits = quantized_limits(to.range);
  const i32 min_index = min_positive_code(to.range);
  const float* x_data = x.data<float>();
  u8* codes = static_cast<u8*>(to.codes.raw());
  float* scales = to.scales.data<float>();
  parallel_for(cpu(x), to.scales.numel(), kBlocksPerChunk, [=, &limits](i64 begin, i64 end) {
    for (i64 b = begin; b < end; ++b)
      scales[b] = quantize_block(x_data + b * kQuantizedBlock, codes + b * kQuantizedBlock, limits.data(), min_index);
  });
}

void dequantize(const Quantized& from, Tensor& x) {
  const QuantizedValues values = quantized_values(from.range);
  const u8* codes = static_cast<const u8*>(from.codes.raw());
  const float* scales = from.scales.data<float>();
  float* x_data = x.data<float>();
  parallel_for(cpu(x), from.scales.numel(), kBlocksPerChunk, [=, &values](i64 begin, i64 end) {
    for (i64 b = begin; b < end; ++b)
      dequantize_block(codes + b * kQuantizedBlock, scales[b], x_data + b * kQuantizedBlock, values.data());
  });
}

}  // namespace mcpp::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mcpp {

HWY_EXPORT(quantize);
HWY_EXPORT(dequantize);

template <>
void QuantizeKernels<DeviceType::Cpu>::quantize(const Tensor& x, Quantized& to) {
  HWY_DYNAMIC_DISPATCH(quantize)(x, to);
}

template <>
void QuantizeKernels<DeviceType::Cpu>::dequantize(const Quantized& from, Tensor& x) {
  HWY_DYNAMIC_DISPATCH(dequantize)(from, x);
}

}  // namespace mcpp
#endif  // HWY_ONCE
