// Codes of floating-point formats with 8 bits (E4M3, E5M2, E8M0) and 4 bits (E2M1), as stored in files and in optimizer
// states. Formats: Micikevicius et al., "FP8 Formats for Deep Learning", 2022; Open Compute Project, "Microscaling
// Formats (MX)", 2023.
#pragma once
#include <array>
#include <bit>
#include <limits>

#include "tensor/ops/low_precision/fp8.h"

namespace mcpp {

/// Code of NaN in E4M3 and E5M2.
inline constexpr u8 kFp8Nan = 0x7F;

/// Returns the value of a code.
constexpr float from_fp8(Fp8Format format, u8 code) {
  const int bits = fp8_fraction_bits(format), magnitude = code & 0x7F,
            largest = format == Fp8Format::E4M3 ? 0x7E : 0x7B;
  const float sign = (code & 0x80) != 0 ? -1.0f : 1.0f;
  if (magnitude > largest) {
    const bool is_infinite = format == Fp8Format::E5M2 && magnitude == 0x7C;
    return is_infinite ? sign * std::numeric_limits<float>::infinity() : std::numeric_limits<float>::quiet_NaN();
  }
  const int exponent = magnitude >> bits, fraction = magnitude & ((1 << bits) - 1);
  const int significand = exponent == 0 ? fraction : fraction + (1 << bits);
  const int power = fp8_min_exponent(format) - bits + (exponent == 0 ? 0 : exponent - 1);
  return sign * static_cast<float>(significand) * power_of_two(power);
}

/// Returns the code of the nearest value, ties to even. Finite values above the maximum saturate; infinities and NaN
/// become NaN.
constexpr u8 to_fp8(Fp8Format format, float x) {
  constexpr float kRound = 0x1p23F;  // the last bit of larger values is at least 1
  const u32 bits = std::bit_cast<u32>(x), magnitude_bits = bits & 0x7FFFFFFF;
  const u32 sign = bits >> 24 & 0x80;
  if (magnitude_bits >= 0x7F800000) return static_cast<u8>(sign | kFp8Nan);
  const float magnitude = std::bit_cast<float>(magnitude_bits), largest = fp8_max(format);
  const float bounded = magnitude < largest ? magnitude : largest;
  const int stated = static_cast<int>(std::bit_cast<u32>(bounded) >> 23) - 127, lowest = fp8_min_exponent(format);
  const int exponent = stated < lowest ? lowest : stated, fraction_bits = fp8_fraction_bits(format);
  const float steps = bounded * power_of_two(fraction_bits - exponent) + kRound - kRound;
  // The implicit bit of a normal value adds 1 to its exponent field.
  return static_cast<u8>(sign | static_cast<u32>(((exponent - lowest) << fraction_bits) + static_cast<int>(steps)));
}

/// Returns the value of an E8M0 code: a power of two, or NaN.
constexpr float from_e8m0(u8 code) {
  if (code == 0xFF) return std::numeric_limits<float>::quiet_NaN();
  return std::bit_cast<float>(code == 0 ? u32{1} << 22 : static_cast<u32>(code) << 23);
}

/// Values of the E2M1 codes.
inline constexpr std::array<float, 16> kE2m1Values{0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,  4.0f,  6.0f,
                                                   -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f};

/// Returns the values of all codes of an fp8 format.
constexpr std::array<float, 256> fp8_code_values(Fp8Format format) {
  std::array<float, 256> values{};
  for (std::size_t code = 0; code < values.size(); ++code) values[code] = from_fp8(format, static_cast<u8>(code));
  return values;
}

}  // namespace mcpp
