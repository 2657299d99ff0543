// Numbers as a byte each and a scale for every block of them: an optimizer's moments in a quarter of their memory
// (Dettmers et al., "8-bit Optimizers via Block-wise Quantization", 2021).
//
// A byte stands for one of 256 values between -1 and 1, or 0 and 1, that lie the denser the nearer they are to 0, over
// seven powers of ten; the scale is the block's largest magnitude, which is kept exactly. So what was quantized once is
// not changed by being written out in full and quantized again.
//
// Blocks are short, 64 instead of the paper's 2048: all cuts of parameters over data-parallel ranks lie between them,
// so that numbers do not depend on the layout; the scales take a sixteenth of a byte for each number.
#pragma once
#include <array>
#include <limits>

#include "tensor/tensor.h"

namespace mcpp {

inline constexpr i64 kQuantizedBlock = 64;
/// Blocks whose largest magnitude is below count as zeros: products of smaller scales would lose bits.
inline constexpr float kLeastScale = 0x1p-100F;

enum class QuantizedRange : u8 { Signed, NonNegative };

/// `count` numbers, a multiple of kQuantizedBlock.
struct Quantized {
  Tensor codes;   ///< int32 [count / 4]: a byte for each number, in order
  Tensor scales;  ///< fp32 [count / kQuantizedBlock]
  QuantizedRange range = QuantizedRange::Signed;
};

using QuantizedValues = std::array<float, 256>;

/// What the bytes stand for, rising. Dettmers' dynamic map: in each power of ten twice as many values as in the one
/// below it. His signed one has +1 but not -1; here -1 takes the place of its neighbour, so that the largest magnitude
/// of a block is exact.
constexpr QuantizedValues quantized_values(QuantizedRange range) {
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

/// Of each two neighbours the middle: above it, the upper one is nearer. The last is infinite.
constexpr QuantizedValues quantized_limits(QuantizedRange range) {
  const QuantizedValues values = quantized_values(range);
  QuantizedValues limits{};
  for (std::size_t i = 0; i + 1 < values.size(); ++i) limits[i] = (values[i] + values[i + 1]) / 2;
  limits[255] = std::numeric_limits<float>::infinity();
  return limits;
}

namespace ops {

/// x, fp32 and finite, as bytes: each the nearest value. NonNegative: no number above 0 becomes 0, because a second
/// moment of 0 would make of its first moment a step without bound.
void quantize(const Tensor& x, Quantized& to);
void dequantize(const Quantized& from, Tensor& x);

}  // namespace ops

/// As Kernels.
template <DeviceType D>
struct QuantizeKernels {
  static decltype(ops::quantize) quantize;
  static decltype(ops::dequantize) dequantize;
};

}  // namespace mcpp
