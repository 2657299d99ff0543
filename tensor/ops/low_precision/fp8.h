// GEMMs in fp8 (formats: Micikevicius et al., "FP8 Formats for Deep Learning", 2022). A scale applies to a full tensor,
// derived from its current largest magnitude, or to a block of a matrix (recipe.h lists the recipes).
//
// Scales are powers of two: the largest for which no value exceeds the format's maximum. Since fp8 is a floating-point
// format, other scales would not reduce rounding errors, except in the lowest binade. Scaling by a power of two is
// exact in both directions, so results do not depend on where the scale is applied. The CPU, which lacks fp8, therefore
// multiplies in bf16, which represents all scaled fp8 values, and accumulates in fp32 like a GPU. This emulates the
// effect of fp8 on training, but is slower than bf16.
#pragma once
#include <bit>
#include <limits>
#include <string>

#include "tensor/ops/ops.h"

namespace mcpp {

/// E4M3: 4 exponent bits, 3 fraction bits; maximum 448, minimum 2^-9, NaN but no infinity. E5M2: maximum 57344, minimum
/// 2^-16.
enum class Fp8Format : u8 { E4M3, E5M2 };

constexpr int fp8_fraction_bits(Fp8Format format) {
  return format == Fp8Format::E4M3 ? 3 : 2;
}
/// Exponent of the smallest normal value.
constexpr int fp8_min_exponent(Fp8Format format) {
  return format == Fp8Format::E4M3 ? -6 : -14;
}
/// Exponent of the maximum, which is 1.75 times this power of two in both formats.
constexpr int fp8_max_exponent(Fp8Format format) {
  return format == Fp8Format::E4M3 ? 8 : 15;
}
constexpr float power_of_two(int exponent) {
  return std::bit_cast<float>(static_cast<u32>(exponent + 127) << 23);
}
constexpr float fp8_max(Fp8Format format) {
  return 1.75f * power_of_two(fp8_max_exponent(format));
}

/// Maximum exponent of a tensor's scale. Values below 2^-100 do not occur in training, and their products would
/// underflow in fp32.
inline constexpr int kMaxFp8ScaleExponent = 100;

/// Returns the factor applied before rounding a tensor or block with this largest magnitude. Returns NaN if `amax` is
/// not finite, so that the entire tensor or block becomes NaN and non-finite values are not masked.
constexpr float fp8_scale(Fp8Format format, float amax) {
  const u32 bits = std::bit_cast<u32>(amax);
  const int exponent = static_cast<int>(bits >> 23 & 0xFF) - 127;
  if (exponent == 128) return std::numeric_limits<float>::quiet_NaN();
  const bool is_above = (bits & 0x7FFFFF) > 0x600000;  // above 1.75 times the power of two
  const int power = fp8_max_exponent(format) - exponent - (is_above ? 1 : 0);
  return power_of_two(power < kMaxFp8ScaleExponent ? power : kMaxFp8ScaleExponent);
}

/// Rows and columns of the blocks of a matrix, counted from its first element; the last blocks may be smaller.
struct BlockShape {
  i64 rows = 0, columns = 0;  ///< both 0: no blocks
  constexpr bool is_defined() const { return rows > 0; }
  bool operator==(const BlockShape&) const = default;
};

/// Rounding of a tensor to fp8, with one scale or with one per block.
struct Fp8Scale {
  Fp8Format format = Fp8Format::E4M3;
  Tensor amax =
      {};  ///< fp32 [1]: largest magnitude in the full tensor, across all of its shards; undefined with blocks
  BlockShape block = {};
};

namespace ops {

/// Updates amax, fp32 [1], to the maximum of itself and the magnitudes in x, bf16; infinite if x contains an infinity
/// or NaN. Does not synchronize with the host.
void add_amax(const Tensor& x, Tensor& amax);
/// Rounds x to fp8 and back into y, both bf16: to the nearest scaled value of the format, ties to even. Values above
/// the maximum saturate; infinities and NaN become NaN. With blocks, x is a matrix, and a block with an infinity or NaN
/// becomes NaN throughout. On a GPU, blocks must have a shape that a recipe defines (recipe.h).
void round_to_fp8(const Tensor& x, const Fp8Scale& scale, Tensor& y);
/// Computes matmul() of a and b, which are bf16 and are rounded to fp8 first (b to E4M3). c is bf16 or fp32.
/// Accumulates in fp32 and rounds the result once. On a GPU, sizes must be multiples of 16 if scales apply to full
/// tensors, and blocks must have a shape that a recipe defines, along the contraction.
void fp8_matmul(const Tensor& a, const Fp8Scale& a_scale, const Tensor& b, const Fp8Scale& b_scale, Tensor& c,
                const MatmulOptions& options = {});
/// Returns the reason why the device does not support fp8 GEMMs; "" if it does.
std::string fp8_unsupported_reason(const Device& device);

}  // namespace ops

/// Backend implementations, as in Kernels.
template <DeviceType D>
struct Fp8Kernels {
  static decltype(ops::add_amax) add_amax;
  static decltype(ops::round_to_fp8) round_to_fp8;
  static void matmul(const Tensor& a, const Fp8Scale& a_scale, const Tensor& b, const Fp8Scale& b_scale, Tensor& c,
                     const ops::MatmulOptions& options);
  static decltype(ops::fp8_unsupported_reason) problem;
};

}  // namespace mcpp
