#include "tensor/ops/low_precision/stochastic_round.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "base/philox.h"
#include "tensor/transfer.h"
#include "tests/support/gpu.h"

namespace mcpp {
namespace {

class StochasticRoundTest : public testing::TestWithParam<DeviceType> {
 protected:
  void SetUp() override {
    if (const std::string why = test::why_missing(GetParam()); !why.empty()) GTEST_SKIP() << why;
    device_ = test::make_device(GetParam(), 2);
  }
  /// Returns the bits of the rounded values.
  std::vector<u16> rounded(const std::vector<float>& values, const StochasticElements& elements) {
    const auto count = static_cast<i64>(values.size());
    Tensor x = Tensor::empty({count}, DType::F32, *device_), y = Tensor::empty({count}, DType::BF16, *device_);
    write_values(values, x);
    ops::stochastic_round(x, elements, y);
    std::vector<u16> bits;
    for (const BFloat16 value : read_values<BFloat16>(y)) bits.push_back(value.bits);
    return bits;
  }
  std::vector<u16> rounded_vector(const std::vector<float>& values, u64 key) {
    const Shape shape{static_cast<i64>(values.size())};
    return rounded(values, {.key = key, .global = shape, .offset = {0}, .shape = shape});
  }
  static std::vector<float> random_values(std::size_t count) {
    std::mt19937 random(7);
    std::normal_distribution<float> normal;
    std::vector<float> values(count);
    for (float& x : values) x = normal(random);
    return values;
  }

  std::unique_ptr<Device> device_;
};

INSTANTIATE_TEST_SUITE_P(Devices, StochasticRoundTest, testing::ValuesIn(test::device_types()),
                         [](const auto& p) { return test::name_of(p.param); });

/// The mean of many roundings differs from the value by at most five standard errors.
TEST_P(StochasticRoundTest, ExpectedValueIsExact) {
  constexpr std::size_t kCount = 1 << 18;
  u64 key = 1;
  for (const float x : {1.001f, -1.001f, 0.3333333f, 1.00001f, -2.9999f, 3e-39f, 1e30f}) {
    const u32 bits = std::bit_cast<u32>(x);
    const double fraction = (bits & 0xFFFF) / 65536.0;  // distance from the value towards zero, in steps
    const auto low = static_cast<u16>(bits >> 16);
    i64 away = 0;
    for (const u16 y : rounded_vector(std::vector<float>(kCount, x), key++)) {
      ASSERT_TRUE(y == low || y == low + 1) << x;
      away += y - low;
    }
    const double mean = static_cast<double>(away) / kCount, error = std::sqrt(fraction * (1 - fraction) / kCount);
    EXPECT_NEAR(mean, fraction, 5 * error) << x;
  }
}

/// Different keys, rows and columns have uncorrelated roundings.
TEST_P(StochasticRoundTest, RoundingsAreIndependent) {
  constexpr i64 kRows = 256, kColumns = 256, kCount = kRows * kColumns;
  const std::vector<float> values(kCount, std::bit_cast<float>(0x3F808000U));  // halfway
  const StochasticElements elements{
      .key = 3, .global = {kRows, kColumns}, .offset = {0, 0}, .shape = {kRows, kColumns}};
  StochasticElements other = elements;
  other.key = 4;
  const std::vector<u16> a = rounded(values, elements), b = rounded(values, other);
  const auto agreement = [&](auto&& pair_of) {
    double equal = 0;
    for (i64 i = 0; i < kCount; ++i) equal += a[static_cast<std::size_t>(i)] == pair_of(i) ? 1 : 0;
    return equal / kCount;
  };
  const double error = 0.5 / std::sqrt(static_cast<double>(kCount));
  EXPECT_NEAR(agreement([&](i64 i) { return b[static_cast<std::size_t>(i)]; }), 0.5, 5 * error);
  for (const i64 distance : {i64{1}, i64{4}, kColumns, kColumns + 1})
    EXPECT_NEAR(agreement([&](i64 i) { return a[static_cast<std::size_t>((i + distance) % kCount)]; }), 0.5, 5 * error);
}

/// Compares with the definition, element by element.
TEST_P(StochasticRoundTest, EqualsDefinition) {
  constexpr i64 kRows = 3 * 5, kColumns = 1037;
  const std::vector<float> x = random_values(kRows * kColumns);
  const std::vector<u16> y =
      rounded(x, {.key = 9, .global = {3, 5, kColumns}, .offset = {0, 0, 0}, .shape = {3, 5, kColumns}});
  for (i64 i = 0; i < kRows * kColumns; ++i) {
    const i64 row = i / kColumns, column = i % kColumns;
    const Philox4 words = philox4x32(9, {static_cast<u32>(row), 0, 0, static_cast<u32>(column / 4)});
    const u32 random = words[static_cast<std::size_t>(column % 4)] >> 16;
    const u32 bits = std::bit_cast<u32>(x[static_cast<std::size_t>(i)]);
    ASSERT_EQ(y[static_cast<std::size_t>(i)], static_cast<u16>((bits + random) >> 16)) << i;
  }
}

/// Cuts a tensor along every axis, and into flat ranges of these boxes.
TEST_P(StochasticRoundTest, DoesNotDependOnSharding) {
  const Shape global{4, 6, 42};
  const std::vector<float> x = random_values(static_cast<std::size_t>(numel(global)));
  const std::vector<u16> whole = rounded(x, {.key = 5, .global = global, .offset = {0, 0, 0}, .shape = global});
  for (const auto& [offset, shape] : {std::pair<Shape, Shape>{{2, 0, 0}, {2, 6, 42}},
                                      {{0, 3, 0}, {4, 3, 42}},
                                      {{0, 0, 21}, {4, 6, 21}},
                                      {{1, 2, 6}, {2, 4, 30}},
                                      {{3, 5, 41}, {1, 1, 1}}}) {
    std::vector<float> part;
    std::vector<u16> expected;
    for (i64 i = 0; i < numel(shape); ++i) {
      const i64 c = i % shape[2] + offset[2], b = i / shape[2] % shape[1] + offset[1],
                a = i / shape[2] / shape[1] + offset[0];
      const auto at = static_cast<std::size_t>((a * global[1] + b) * global[2] + c);
      part.push_back(x[at]), expected.push_back(whole[at]);
    }
    for (const i64 pieces : {1, 3, 7}) {
      for (i64 piece = 0; piece < pieces; ++piece) {
        const i64 begin = numel(shape) * piece / pieces, end = numel(shape) * (piece + 1) / pieces;
        if (begin == end) continue;
        EXPECT_EQ(rounded({part.begin() + begin, part.begin() + end},
                          {.key = 5, .global = global, .offset = offset, .shape = shape, .first = begin}),
                  std::vector<u16>(expected.begin() + begin, expected.begin() + end))
            << "box at " << str(offset) << ", elements " << begin << " to " << end;
      }
    }
  }
}

TEST_P(StochasticRoundTest, KeepsExactAndNonFiniteValues) {
  const float inf = std::numeric_limits<float>::infinity();
  std::vector<float> exact{0.0f, -0.0f, 1.0f, -1.5f, inf, -inf, 0x1p-133f};
  const std::size_t count = exact.size();
  while (exact.size() < 200) exact.push_back(exact[exact.size() % count]);
  const std::vector<u16> y = rounded_vector(exact, 2);
  for (std::size_t i = 0; i < exact.size(); ++i) EXPECT_EQ(y[i], std::bit_cast<u32>(exact[i]) >> 16) << exact[i];
  for (const u32 nan : {0x7FC00000U, 0x7FFFFFFFU, 0xFFFFFFFFU, 0x7F800001U}) {
    for (const u16 bits : rounded_vector(std::vector<float>(100, std::bit_cast<float>(nan)), 3))
      EXPECT_TRUE((bits & 0x7FFF) > 0x7F80) << nan;
  }
}

TEST_P(StochasticRoundTest, RejectsOtherTypesAndRanges) {
  Tensor x = Tensor::zeros({8}, DType::F32, *device_), y = Tensor::zeros({8}, DType::BF16, *device_);
  const StochasticElements elements{.key = 1, .global = {8}, .offset = {0}, .shape = {8}};
  EXPECT_THROW(ops::stochastic_round(y, elements, y), Error);
  EXPECT_THROW(ops::stochastic_round(x, elements, x), Error);
  StochasticElements outside = elements;
  outside.first = 1;
  EXPECT_THROW(ops::stochastic_round(x, outside, y), Error);
}

}  // namespace
}  // namespace mcpp
