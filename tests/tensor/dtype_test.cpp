// Conversions of the 16-bit types against their definition, value by value.
#include "tensor/dtype.h"

#include <cmath>
#include <limits>

#include "tests/support/ops.h"

namespace mcpp::test {
namespace {

constexpr u16 kSign = 0x8000, kInfinity = 0x7C00, kLargest = 0x7BFF;

Float16 half(u16 bits) {
  Float16 x;
  x.bits = bits;
  return x;
}

/// Returns the value of these bits according to IEEE 754 binary16.
double value_of(u16 bits) {
  const int exponent = bits >> 10 & 31, fraction = bits & 1023;
  const double magnitude = exponent == 31
                               ? (fraction ? std::nan("") : std::numeric_limits<double>::infinity())
                               : std::ldexp(exponent ? 1024 + fraction : fraction, std::max(exponent, 1) - 25);
  return bits & kSign ? -magnitude : magnitude;
}

/// All values, the floats halfway between neighbors and those next to them, with the expected halves.
struct Roundings {
  Numbers from;
  std::vector<u16> to;

  Roundings() {
    for (u16 bits = 0; bits < kLargest; ++bits) {
      const u16 next = static_cast<u16>(bits + 1);
      add(value_of(bits), bits);
      add_middle(static_cast<float>((value_of(bits) + value_of(next)) / 2), bits, next);
    }
    add(65504, kLargest);
    add_middle(65520, kLargest, kInfinity);  // as if the next value were 65536
    for (double large : {65536.0, 1e6, double{std::numeric_limits<float>::max()}, double{INFINITY}})
      add(large, kInfinity);
    add(std::numeric_limits<float>::denorm_min(), 0);
  }

  void add_middle(float middle, u16 below, u16 above) {
    add(std::nextafter(middle, 0.0f), below);
    add(middle, below % 2 == 0 ? below : above);
    add(std::nextafter(middle, INFINITY), above);
  }
  void add(double x, u16 bits) {
    from.push_back(x), to.push_back(bits);
    from.push_back(-x), to.push_back(bits | kSign);
  }
};

TEST(Float16Test, WidensExactlyAndRoundsToItself) {
  for (u32 i = 0; i < 65536; ++i) {
    const u16 bits = static_cast<u16>(i);
    const float wide = static_cast<float>(half(bits));
    const double expected = value_of(bits);
    ASSERT_EQ(std::signbit(wide), (bits & kSign) != 0) << i;
    if (std::isnan(expected)) {
      ASSERT_TRUE(std::isnan(wide)) << i;
      ASSERT_TRUE(std::isnan(value_of(Float16(wide).bits))) << i;
      ASSERT_EQ(Float16(wide).bits & ~0x200, bits & ~0x200) << "sign and payload stay";
    } else {
      ASSERT_EQ(static_cast<double>(wide), expected) << i;
      ASSERT_EQ(Float16(wide).bits, bits) << i;
    }
  }
}

TEST(Float16Test, RoundsToNearestEven) {
  const Roundings all;
  for (std::size_t i = 0; i < all.from.size(); ++i)
    ASSERT_EQ(Float16(static_cast<float>(all.from[i])).bits, all.to[i]) << all.from[i];
}

TEST(Float16Test, ConvertsAtCompileTime) {
  static_assert(Float16(1.0f).bits == 0x3C00 && Float16(-2.0f).bits == 0xC000 && Float16(1e-7f).bits == 2);
  static_assert(static_cast<float>(Float16(0.1f)) == 0.0999755859375f && static_cast<float>(Float16(1e9f)) > 1e30f);
}

TEST(Float16Test, PreservesNaNOfAnyPayload) {
  for (u32 bits : {0x7F800001u, 0x7FFFFFFFu, 0x7FC00000u, 0xFF801000u, 0xFFBFFFFFu})
    EXPECT_TRUE(std::isnan(value_of(Float16(std::bit_cast<float>(bits)).bits))) << bits;
}

class Float16OpsTest : public Ops {};
INSTANTIATE_TEST_SUITE_P(Types, Float16OpsTest,
                         testing::Combine(testing::Values(DType::F32), testing::ValuesIn(all_targets())), ops_name);

TEST_P(Float16OpsTest, VectorConversionMatchesScalarType) {
  Numbers halves;
  for (u32 i = 0; i < 65536; ++i) halves.push_back(value_of(static_cast<u16>(i)));
  const Roundings all;
  const i64 count = static_cast<i64>(all.from.size());
  const auto outputs = run([&](Device& device) {
    Tensor wide = garbage({65536}, DType::F32, device), narrow = garbage({count}, DType::F16, device);
    ops::copy(tensor_of(halves, {65536}, DType::F16, device), wide);
    ops::copy(tensor_of(all.from, {count}, DType::F32, device), narrow);
    return std::vector{wide, narrow};
  });
  expect_close(outputs[0], halves, 0, 0, "widened");
  Numbers rounded_to;
  for (u16 bits : all.to) rounded_to.push_back(value_of(bits));
  CpuDevice device;
  EXPECT_TRUE(same_bits(outputs[1], tensor_of(rounded_to, {count}, DType::F16, device)));
}

}  // namespace
}  // namespace mcpp::test
