#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tensor/cpu/pack.cpp"
#include "tensor/ops/low_precision/pack.h"

#include "hwy/foreach_target.h"
#include "tensor/cpu/simd/parallel.h"
#include "tensor/cpu/simd/simd-inl.h"
#include "tensor/ops/low_precision/quantize.h"

HWY_BEFORE_NAMESPACE();
namespace mcpp::HWY_NAMESPACE {

constexpr i64 kBlocksPerChunk = kElementsPerChunk / kPackedBlock;
/// Number of sums that stay in the L1 cache while the messages are added one by one.
constexpr i64 kSumsPerChunk = 4096;
constexpr i32 kInfinity = 0x7F800000;

/// Returns the bits of the largest magnitude of a block; non-finite values have the largest bits.
template <class D, class T>
HWY_INLINE i32 largest_magnitude(D d, const T* x) {
  const hn::RebindToSigned<D> bits;
  auto largest = hn::Zero(bits);
  for (i64 i = 0; i < kPackedBlock; i += static_cast<i64>(hn::Lanes(d)))
    largest = hn::Max(largest, hn::BitCast(bits, hn::Abs(load(d, x + i, AllLanes()))));
  return hn::GetLane(hn::MaxOfLanes(bits, largest));
}

template <class T>
void pack_block(const T* x, i32* words) {
  const LaneTag<float> d;
  const hn::Rebind<i8, decltype(d)> bytes;
  const i32 magnitude_bits = largest_magnitude(d, x);
  const auto magnitude = std::bit_cast<float>(magnitude_bits);
  if (magnitude_bits >= kInfinity || magnitude < kMinScale) {
    std::memset(words, 0, kPackedWords * sizeof(i32));
    if (magnitude_bits >= kInfinity) words[0] = std::bit_cast<i32>(std::numeric_limits<float>::quiet_NaN());
    return;
  }
  words[0] = std::bit_cast<i32>(magnitude / 127);
  const auto steps = hn::Set(d, 127 / magnitude);
  i8* codes = reinterpret_cast<i8*>(words + 1);
  for (i64 i = 0; i < kPackedBlock; i += static_cast<i64>(hn::Lanes(d)))
    hn::StoreU(hn::DemoteTo(bytes, hn::NearestInt(hn::Mul(load(d, x + i, AllLanes()), steps))), bytes, codes + i);
}

/// Calls f(i, values of elements i, i + 1, ...) for a full block.
template <class D, class F>
HWY_INLINE void for_each_unpacked(D d, const i32* words, F&& f) {
  const hn::RebindToSigned<D> integers;
  const hn::Rebind<i8, D> bytes;
  const auto scale = hn::Set(d, std::bit_cast<float>(words[0]));
  const i8* codes = reinterpret_cast<const i8*>(words + 1);
  for (i64 i = 0; i < kPackedBlock; i += static_cast<i64>(hn::Lanes(d)))
    f(i, hn::Mul(hn::ConvertTo(d, hn::PromoteTo(integers, hn::LoadU(bytes, codes + i))), scale));
}

template <class T>
void unpack_block(const i32* words, T* x) {
  const LaneTag<float> d;
  for_each_unpacked(d, words, [&](i64 i, auto values) HWY_ATTR { store(values, d, x + i, AllLanes()); });
}

void add_unpacked_block(const i32* words, float* sum) {
  const LaneTag<float> d;
  for_each_unpacked(
      d, words, [&](i64 i, auto values) HWY_ATTR { hn::StoreU(hn::Add(hn::LoadU(d, sum + i), values), d, sum + i); });
}

/// Calls f(block index) for all blocks of x.
template <class F>
void for_each_block(const Tensor& x, const F& f) {
  parallel_for(cpu(x), x.numel() / kPackedBlock, kBlocksPerChunk, [&](i64 begin, i64 end) {
    for (i64 b = begin; b < end; ++b) f(b);
  });
}

/// Calls f.operator()<T>() with the type of x, which is not fp64.
template <class F>
void on_fp32_or_low_precision(const Tensor& x, const F& f) {
  on_float(x.dtype(), [&]<class T>() {
    if constexpr (!std::is_same_v<T, double>) f.template operator()<T>();
  });
}

void pack(const Tensor& x, Tensor& message) {
  on_fp32_or_low_precision(x, [&]<class T>() {
    const T* values = x.data<T>();
    i32* words = message.data<i32>();
    for_each_block(x, [=](i64 b) { pack_block(values + b * kPackedBlock, words + b * kPackedWords); });
  });
}

void unpack(const Tensor& message, Tensor& x) {
  on_fp32_or_low_precision(x, [&]<class T>() {
    T* values = x.data<T>();
    const i32* words = message.data<i32>();
    for_each_block(x, [=](i64 b) { unpack_block(words + b * kPackedWords, values + b * kPackedBlock); });
  });
}

/// Adds block by block, so that sums are written once.
void sum_unpacked(const Tensor& messages, Tensor& sum) {
  float* values = sum.data<float>();
  const i32 *words = messages.data<i32>(), *end = words + messages.numel();
  const i64 step = packed_words(sum.numel());
  for_each_block(sum, [=](i64 b) {
    const i32* next = words + b * kPackedWords;
    unpack_block(next, values + b * kPackedBlock);
    while ((next += step) < end) add_unpacked_block(next, values + b * kPackedBlock);
  });
}

void sum_rounded(const Tensor& messages, Tensor& sum) {
  const LaneTag<float> d;
  const i64 count = sum.numel();
  const BFloat16 *first = messages.data<BFloat16>(), *end = first + messages.numel();
  float* to = sum.data<float>();
  parallel_for(cpu(sum), count, kSumsPerChunk, [=](i64 begin, i64 stop) {
    sweep(d, begin, stop, [=](i64 i, auto lanes) { store(load(d, first + i, lanes), d, to + i, lanes); });
    for (const BFloat16* next = first + count; next < end; next += count) {
      sweep(d, begin, stop, [=](i64 i, auto lanes) {
        store(hn::Add(load(d, to + i, lanes), load(d, next + i, lanes)), d, to + i, lanes);
      });
    }
  });
}

}  // namespace mcpp::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mcpp {

HWY_EXPORT(pack);
HWY_EXPORT(unpack);
HWY_EXPORT(sum_unpacked);
HWY_EXPORT(sum_rounded);

template <>
void PackKernels<DeviceType::Cpu>::pack(const Tensor& x, Tensor& message) {
  HWY_DYNAMIC_DISPATCH(pack)(x, message);
}

template <>
void PackKernels<DeviceType::Cpu>::unpack(const Tensor& message, Tensor& x) {
  HWY_DYNAMIC_DISPATCH(unpack)(message, x);
}

template <>
void PackKernels<DeviceType::Cpu>::sum_unpacked(const Tensor& messages, Tensor& sum) {
  HWY_DYNAMIC_DISPATCH(sum_unpacked)(messages, sum);
}

template <>
void PackKernels<DeviceType::Cpu>::sum_rounded(const Tensor& messages, Tensor& sum) {
  HWY_DYNAMIC_DISPATCH(sum_rounded)(messages, sum);
}

}  // namespace mcpp
#endif  // HWY_ONCE
