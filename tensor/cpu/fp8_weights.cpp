#include "tensor/ops/low_precision/fp8_weights.h"

#include <algorithm>
#include <bit>

#include "tensor/cpu/simd/parallel.h"
#include "tensor/ops/low_precision/float_codes.h"

namespace mcpp {
namespace {

constexpr i64 kGroupsPerChunk = kElementsPerChunk / kPackedBlock;

/// Returns the largest magnitude of a group; infinity if it has an infinity or NaN.
float group_amax(const u16* x) {
  u32 largest = 0;
  for (i64 i = 0; i < kPackedBlock; ++i) largest = std::max(largest, u32{x[i]} & 0x7FFF);
  return std::bit_cast<float>(std::min<u32>(largest, 0x7F80) << 16);
}

}  // namespace

/// Sequential, because groups of one block share a result. It reads each weight once per step.
template <>
void Fp8WeightKernels<DeviceType::Cpu>::add_amax(const Tensor& x, const WeightRange& range, Tensor& amax) {
  const auto* values = static_cast<const u16*>(x.raw());
  float* largest = amax.data<float>();
  for (i64 group = 0; group < x.numel() / kPackedBlock; ++group) {
    float& block_amax = largest[range.block_of(group)];
    block_amax = std::max(block_amax, group_amax(values + group * kPackedBlock));
  }
}

template <>
void Fp8WeightKernels<DeviceType::Cpu>::pack(const Tensor& x, const WeightRange& range, const Tensor& amax,
                                             Tensor& message) {
  const auto* values = x.data<BFloat16>();
  const float* largest = amax.data<float>();
  i32* words = message.data<i32>();
  parallel_for(cpu(x), x.numel() / kPackedBlock, kGroupsPerChunk, [=](i64 begin, i64 end) {
    for (i64 group = begin; group < end; ++group) {
      const float scale = fp8_scale(Fp8Format::E4M3, largest[range.block_of(group)]);
      i32* to = words + group * kPackedWords;
      *to = std::bit_cast<i32>(1 / scale);
      auto* codes = reinterpret_cast<u8*>(to + 1);
      for (i64 i = 0; i < kPackedBlock; ++i)
        codes[i] = to_fp8(Fp8Format::E4M3, static_cast<float>(values[group * kPackedBlock + i]) * scale);
    }
  });
}

template <>
void Fp8WeightKernels<DeviceType::Cpu>::unpack(const Tensor& message, Tensor& x) {
  static constexpr std::array<float, 256> kValues = fp8_code_values(Fp8Format::E4M3);
  auto* values = x.data<BFloat16>();
  const i32* words = message.data<i32>();
  parallel_for(cpu(x), x.numel() / kPackedBlock, kGroupsPerChunk, [=](i64 begin, i64 end) {
    for (i64 group = begin; group < end; ++group) {
      const i32* from = words + group * kPackedWords;
      const auto unit = std::bit_cast<float>(*from);
      const auto* codes = reinterpret_cast<const u8*>(from + 1);
      for (i64 i = 0; i < kPackedBlock; ++i) values[group * kPackedBlock + i] = BFloat16(kValues[codes[i]] * unit);
    }
  });
}

}  // namespace mcpp
