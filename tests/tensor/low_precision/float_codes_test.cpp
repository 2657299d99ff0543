#include "tensor/ops/low_precision/float_codes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace mcpp {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

/// Returns the value of a code by the definition of the format, with a bias of 7 (E4M3) or 15 (E5M2).
double defined_value(Fp8Format format, int code) {
  const bool is_e4m3 = format == Fp8Format::E4M3;
  const int bits = is_e4m3 ? 3 : 2, bias = is_e4m3 ? 7 : 15;
  const int exponent = (code & 0x7F) >> bits, fraction = code & ((1 << bits) - 1);
  const double sign = code < 128 ? 1 : -1;
  if (is_e4m3 && (code & 0x7F) == 0x7F) return std::nan("");
  if (!is_e4m3 && exponent == 31) return fraction == 0 ? sign * kInfinity : std::nan("");
  const double significand = std::ldexp(fraction, -bits);
  return exponent == 0 ? sign * std::ldexp(significand, 1 - bias) : sign * std::ldexp(1 + significand, exponent - bias);
}

class FloatCodesTest : public testing::TestWithParam<Fp8Format> {};
INSTANTIATE_TEST_SUITE_P(Formats, FloatCodesTest, testing::Values(Fp8Format::E4M3, Fp8Format::E5M2));

TEST_P(FloatCodesTest, ValuesMatchDefinitionOfFormat) {
  for (int code = 0; code < 256; ++code) {
    const float value = from_fp8(GetParam(), static_cast<u8>(code));
    const double defined = defined_value(GetParam(), code);
    if (std::isnan(defined)) {
      EXPECT_TRUE(std::isnan(value)) << code;
      continue;
    }
    EXPECT_EQ(value, defined) << code;
    EXPECT_EQ(std::signbit(value), code >= 128) << code;
    if (std::isfinite(value)) {
      EXPECT_EQ(to_fp8(GetParam(), value), code);
    }
  }
}

TEST_P(FloatCodesTest, RoundsToNearestWithTiesToEven) {
  const Fp8Format format = GetParam();
  const int largest = format == Fp8Format::E4M3 ? 0x7E : 0x7B;
  for (int code = 0; code < largest; ++code) {
    const double low = defined_value(format, code), high = defined_value(format, code + 1), middle = (low + high) / 2;
    const int even = code % 2 == 0 ? code : code + 1;
    for (const float sign : {1.0f, -1.0f}) {
      const int offset = sign < 0 ? 128 : 0;
      const auto tie = static_cast<float>(middle);
      ASSERT_EQ(tie, middle);
      EXPECT_EQ(to_fp8(format, sign * tie), even + offset);
      EXPECT_EQ(to_fp8(format, sign * std::nextafter(tie, 0.0f)), code + offset);
      EXPECT_EQ(to_fp8(format, sign * std::nextafter(tie, kInfinity)), code + 1 + offset);
    }
  }
}

TEST_P(FloatCodesTest, SaturatesFiniteValuesAndKeepsNonFiniteOnesVisible) {
  const Fp8Format format = GetParam();
  const float max = fp8_max(format);
  for (const float x : {max, std::nextafter(max, kInfinity), 2 * max, std::numeric_limits<float>::max()}) {
    EXPECT_EQ(from_fp8(format, to_fp8(format, x)), max);
    EXPECT_EQ(from_fp8(format, to_fp8(format, -x)), -max);
  }
  for (const float x : {kInfinity, -kInfinity, std::nanf("")})
    EXPECT_TRUE(std::isnan(from_fp8(format, to_fp8(format, x))));
  EXPECT_EQ(to_fp8(format, std::numeric_limits<float>::denorm_min()), 0);
  EXPECT_EQ(to_fp8(format, -0.0f), 0x80);
}

TEST(E8m0Test, ScalesArePowersOfTwo) {
  for (int code = 0; code < 255; ++code)
    EXPECT_EQ(from_e8m0(static_cast<u8>(code)), std::ldexp(1.0, code - 127)) << code;
  EXPECT_TRUE(std::isnan(from_e8m0(255)));
}

}  // namespace
}  // namespace mcpp
