// Block-wise 8-bit quantization: stores an optimizer's moments in a quarter of their memory (Dettmers et al., "8-bit
// Optimizers via Block-wise Quantization", 2021).
//
// A byte selects one of up to 256 values in [-1, 1] or [0, 1], which are denser near 0. The scale is the block's
// largest magnitude and is stored exactly, so dequantizing and quantizing again changes nothing.
//
// The values are those of Dettmers' dynamic maps or, as in FP8-LM (Peng et al., 2023), those of an fp8 format divided
// by its maximum. A code is the position of a value in ascending order.
//
// Blocks have 64 values instead of the paper's 2048: parameters are sharded across data-parallel ranks at block
// boundaries, so results do not depend on the layout. The scales take 1/16 of a byte per value.
#pragma once
#include <array>
#include <limits>

#include "tensor/ops/low_precision/float_codes.h"
#include "tensor/tensor.h"

namespace mcpp {

inline constexpr i64 kQuantizedBlock = 64;
/// Blocks whose largest magnitude is below this count as zeros: products with smaller scales would lose precision.
inline constexpr float kMinScale = 0x1p-100F;

/// Values of codes. Signed and NonNegative: dynamic maps, which span seven powers of ten. The others: fp8 formats;
/// Positive formats are for values that are never negative.
enum class QuantizedRange : u8 { Signed, NonNegative, E4m3, E5m2, PositiveE4m3, PositiveE5m2 };

constexpr bool is_fp8(QuantizedRange range) {
  return range != QuantizedRange::Signed && range != QuantizedRange::NonNegative;
}

/// Quantized form of `count` values, a multiple of kQuantizedBlock.
struct Quantized {
  Tensor codes;   ///< int32 [count / 4]: one byte per value, in order
  Tensor scales;  ///< fp32 [count / kQuantizedBlock]
  QuantizedRange range = QuantizedRange::Signed;
};

using QuantizedValues = std::array<float, 256>;

/// Returns the finite values of an fp8 format divided by its maximum, ascending; the last ones are 1.
constexpr QuantizedValues fp8_quantized_values(Fp8Format format) {
  const int largest = to_fp8(format, fp8_max(format));
  QuantizedValues values{};
  std::size_t next = 0;
  for (int code = largest; code > 0; --code)
    values[next++] = -from_fp8(format, static_cast<u8>(code)) / fp8_max(format);
  for (int code = 0; code <= largest; ++code)
    values[next++] = from_fp8(format, static_cast<u8>(code)) / fp8_max(format);
  while (next < values.size()) values[next++] = 1;
  return values;
}

/// Returns the values of the 256 codes, ascending: those of an fp8 format, or Dettmers' dynamic map, where each power
/// of ten has twice the values of the next lower one. His signed map has +1 but not -1; here -1 replaces its neighbor,
/// so that a block's largest magnitude is exact.
constexpr QuantizedValues quantized_values(QuantizedRange range) {
  if (is_fp8(range)) {
    const bool is_e4m3 = range == QuantizedRange::E4m3 || range == QuantizedRange::PositiveE4m3;
    return fp8_quantized_values(is_e4m3 ? Fp8Format::E4M3 : Fp8Format::E5M2);
  }
  constexpr std::array<double, 7> kPowers{1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1};
  const bool is_signed = range == QuantizedRange::Signed;
  QuantizedValues values{};
  const std::size_t zero = is_signed ? 127 : 0;
  std::size_t next = zero + 1;
  for (std::size_t i = 0; i < kPowers.size(); ++i) {
    const int count = 1 << (is_signed ? i : i + 1);
    for (int k = 0; k < count; ++k) {
      const auto value = static_cast<float>(kPowers[i] * (0.1 + 0.9 * (k + 0.5) / count));
      if (is_signed) values[zero - (next - zero)] = -value;
      values[next++] = value;
    }
  }
  values[255] = 1;
  if (is_signed) values[0] = -1;
  return values;
}

/// Returns the midpoints between neighboring values. A number above a midpoint is rounded to the upper value. The last
/// midpoint is infinite.
constexpr QuantizedValues quantized_limits(QuantizedRange range) {
  const QuantizedValues values = quantized_values(range);
  QuantizedValues limits{};
  for (std::size_t i = 0; i + 1 < values.size(); ++i) limits[i] = (values[i] + values[i + 1]) / 2;
  limits[255] = std::numeric_limits<float>::infinity();
  return limits;
}

/// Returns the lowest code of a positive number; 0 if positive numbers may become 0.
constexpr int min_positive_code(QuantizedRange range) {
  if (range == QuantizedRange::NonNegative) return 1;
  if (range != QuantizedRange::PositiveE4m3 && range != QuantizedRange::PositiveE5m2) return 0;
  const QuantizedValues values = quantized_values(range);
  std::size_t code = 0;
  while (values[code] <= 0) ++code;
  return static_cast<int>(code);
}

namespace ops {

/// Quantizes x, fp32 and finite, to the nearest values. NonNegative and Positive formats: no positive value becomes 0,
/// because a second moment of 0 would make the step of a nonzero first moment unbounded.
void quantize(const Tensor& x, Quantized& to);
void dequantize(const Quantized& from, Tensor& x);

}  // namespace ops

/// Backend implementations, as in Kernels.
template <DeviceType D>
struct QuantizeKernels {
  static decltype(ops::quantize) quantize;
  static decltype(ops::dequantize) dequantize;
};

}  // namespace mcpp
