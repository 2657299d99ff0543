#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tensor/cpu/param_remainders.cpp"
#include "tensor/ops/low_precision/param_remainders.h"

#include "hwy/foreach_target.h"
#include "tensor/cpu/simd/parallel.h"
#include "tensor/cpu/simd/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace mcpp::HWY_NAMESPACE {

constexpr i64 kBlocksPerChunk = kElementsPerChunk / kRemainderBlock;
using Words = hn::ScalableTag<u32>;
using Halves = hn::Rebind<u16, Words>;

/// Stores the lower halves and returns one bit per value, set if rounding to even went up.
u64 remainders_of(const u32* master, u16* low) {
  const Words d;
  const Halves halves;
  const auto lanes = static_cast<i64>(hn::Lanes(d));
  const auto half = hn::Set(d, 0xFFFF);
  u64 rounded_up = 0;
  for (i64 i = 0; i < kRemainderBlock; i += lanes) {
    const auto x = hn::LoadU(d, master + i), lower = hn::And(x, half);
    const auto last_bit = hn::And(hn::ShiftRight<16>(x), hn::Set(d, 1));
    const auto up = hn::Gt(hn::Add(lower, last_bit), hn::Set(d, 0x8000));
    u8 bits[8]{};
    hn::StoreMaskBits(d, up, bits);
    u64 of_lanes = 0;
    std::memcpy(&of_lanes, bits, sizeof(of_lanes));
    rounded_up |= (of_lanes & ((u64{1} << lanes) - 1)) << i;
    hn::StoreU(hn::DemoteTo(halves, hn::BitCast(hn::RebindToSigned<Words>(), lower)), halves, low + i);
  }
  return rounded_up;
}

void join_block(const u16* model, const u16* low, u64 rounded_up, u32* master) {
  const Words d;
  const Halves halves;
  const auto lanes = static_cast<i64>(hn::Lanes(d));
  for (i64 i = 0; i < kRemainderBlock; i += lanes) {
    const u64 of_lanes = rounded_up >> i;
    u8 bits[8];
    std::memcpy(bits, &of_lanes, sizeof(bits));
    const auto up = hn::IfThenElseZero(hn::LoadMaskBits(d, bits), hn::Set(d, 1));
    const auto upper = hn::Sub(hn::PromoteTo(d, hn::LoadU(halves, model + i)), up);
    const auto lower = hn::PromoteTo(d, hn::LoadU(halves, low + i));
    hn::StoreU(hn::Or(hn::ShiftLeft<16>(upper), lower), d, master + i);
  }
}

void param_remainders(const Tensor& master, ParamRemainders& to) {
  const u32* values = static_cast<const u32*>(master.raw());
  u16* low = static_cast<u16*>(to.low.raw());
  u64* rounded_up = static_cast<u64*>(to.rounded_up.raw());
  parallel_for(cpu(master), master.numel() / kRemainderBlock, kBlocksPerChunk, [=](i64 begin, i64 end) {
    for (i64 b = begin; b < end; ++b)
      rounded_up[b] = remainders_of(values + b * kRemainderBlock, low + b * kRemainderBlock);
  });
}

void join_param_remainders(const Tensor& model, const ParamRemainders& from, Tensor& master) {
  const u16* upper = static_cast<const u16*>(model.raw());
  const u16* low = static_cast<const u16*>(from.low.raw());
  const u64* rounded_up = static_cast<const u64*>(from.rounded_up.raw());
  u32* values = static_cast<u32*>(master.raw());
  parallel_for(cpu(master), master.numel() / kRemainderBlock, kBlocksPerChunk, [=](i64 begin, i64 end) {
    for (i64 b = begin; b < end; ++b) {
      const i64 at = b * kRemainderBlock;
      join_block(upper + at, low + at, rounded_up[b], values + at);
    }
  });
}

}  // namespace mcpp::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mcpp {

HWY_EXPORT(param_remainders);
HWY_EXPORT(join_param_remainders);

template <>
void ParamRemainderKernels<DeviceType::Cpu>::param_remainders(const Tensor& master, ParamRemainders& to) {
  HWY_DYNAMIC_DISPATCH(param_remainders)(master, to);
}

template <>
void ParamRemainderKernels<DeviceType::Cpu>::join_param_remainders(const Tensor& model, const ParamRemainders& from,
                                                                   Tensor& master) {
  HWY_DYNAMIC_DISPATCH(join_param_remainders)(model, from, master);
}

}  // namespace mcpp
#endif  // HWY_ONCE
