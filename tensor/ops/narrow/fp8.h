// Matrix products in fp8, each operand by one scale for all of its tensor, which follows from the tensor's largest
// magnitude at hand: Transformer Engine's "current scaling", the recipe "tensorwise" of Megatron Core (Micikevicius et
// al., "FP8 Formats for Deep Learning", 2022, has the formats).
//
// Scales are powers of two: the largest with which no number is above the format's largest. As fp8 numbers are floating
// ones, another scale would round no better, but for the binade at the bottom of the range; and by a power of two
// scaling and its undoing are exact, so that what a number becomes does not depend on where the scale is applied. The
// CPU makes use of that: it has no fp8, and multiplies in bf16, which holds all fp8 numbers times such a scale, with
// sums in fp32 as a GPU's. That shows what fp8 does to a training, and takes longer than bf16.
#pragma once
#include <bit>
#include <limits>
#include <string>

#include "tensor/ops/ops.h"

namespace mcpp {

/// E4M3: 4 bits of exponent, 3 of fraction; largest 448, smallest 2^-9, NaN and no infinity. E5M2: 57344, 2^-16.
enum class Fp8Format : u8 { E4M3, E5M2 };

constexpr int fp8_fraction_bits(Fp8Format format) {
  return format == Fp8Format::E4M3 ? 3 : 2;
}
/// Of the smallest number with all bits of its fraction.
constexpr int fp8_least_exponent(Fp8Format format) {
  return format == Fp8Format::E4M3 ? -6 : -14;
}
/// Of the largest number, which is 1.75 times this power of two in both.
constexpr int fp8_largest_exponent(Fp8Format format) {
  return format == Fp8Format::E4M3 ? 8 : 15;
}
constexpr float power_of_two(int exponent) {
  return std::bit_cast<float>(static_cast<u32>(exponent + 127) << 23);
}
constexpr float fp8_largest(Fp8Format format) {
  return 1.75f * power_of_two(fp8_largest_exponent(format));
}

/// The exponent of the scale of a tensor is at most this: numbers of less than 2^-100 are in no training, and their
/// products would be lost in fp32.
inline constexpr int kMostFp8Exponent = 100;

/// By what numbers are multiplied before they are rounded, for a tensor with this largest magnitude. NaN where that is
/// not finite, so that all of the tensor becomes NaN: a tensor that holds what is no number must not pass for one.
constexpr float fp8_scale(Fp8Format format, float amax) {
  const u32 bits = std::bit_cast<u32>(amax);
  const int exponent = static_cast<int>(bits >> 23 & 0xFF) - 127;
  if (exponent == 128) return std::numeric_limits<float>::quiet_NaN();
  const bool is_above = (bits & 0x7FFFFF) > 0x600000;  // 1.75 times the power of two
  const int power = fp8_largest_exponent(format) - exponent - (is_above ? 1 : 0);
  return power_of_two(power < kMostFp8Exponent ? power : kMostFp8Exponent);
}

/// How a tensor is rounded to fp8.
struct Fp8Scale {
  Fp8Format format = Fp8Format::E4M3;
  Tensor amax = {};  ///< fp32 [1]: the largest magnitude in all of the tensor, whoever holds its parts
};

namespace ops {

/// amax, fp32 [1], becomes the largest of itself and the magnitudes in x, bf16; infinite when x holds an infinity or
/// NaN. The host does not wait for it.
void add_amax(const Tensor& x, Tensor& amax);
/// y = x rounded to fp8 and back, both bf16: the nearest number of the format times the scale, of two the even one.
/// What is above the largest becomes the largest; infinities and NaN become NaN.
void round_to_fp8(const Tensor& x, const Fp8Scale& scale, Tensor& y);
/// As matmul(), of a and b, bf16, rounded to fp8, b to E4M3; c is bf16 or fp32. Sums are in fp32, and rounded once. On
/// a GPU all sizes are multiples of 16.
void fp8_matmul(const Tensor& a, const Fp8Scale& a_scale, const Tensor& b, const Fp8Scale& b_scale, Tensor& c,
                const MatmulOptions& options = {});
/// Why the device cannot multiply in fp8; "" when it can.
std::string fp8_problem(const Device& device);

}  // namespace ops

/// As Kernels.
template <DeviceType D>
struct Fp8Kernels {
  static decltype(ops::add_amax) add_amax;
  static decltype(ops::round_to_fp8) round_to_fp8;
  static void matmul(const Tensor& a, const Fp8Scale& a_scale, const Tensor& b, const Fp8Scale& b_scale, Tensor& c,
                     const ops::MatmulOptions& options);
  static decltype(ops::fp8_problem) problem;
};

}  // namespace mcpp
