#include "tensor/ops/low_precision/quantize.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "tensor/transfer.h"
#include "tests/support/gpu.h"

namespace mcpp {
namespace {

constexpr QuantizedRange kRanges[]{QuantizedRange::Signed, QuantizedRange::NonNegative,  QuantizedRange::E4m3,
                                   QuantizedRange::E5m2,   QuantizedRange::PositiveE4m3, QuantizedRange::PositiveE5m2};

bool is_positive(QuantizedRange range) {
  return min_positive_code(range) > 0;
}

class QuantizeTest : public testing::TestWithParam<DeviceType> {
 protected:
  void SetUp() override {
    if (const std::string why = test::why_missing(GetParam()); !why.empty()) GTEST_SKIP() << why;
    device_ = test::make_device(GetParam(), 2);
  }
  Tensor tensor(const std::vector<float>& values) {
    Tensor t = Tensor::empty({static_cast<i64>(values.size())}, DType::F32, *device_);
    write_values(values, t);
    return t;
  }
  Quantized quantized(const Tensor& x, QuantizedRange range) {
    Quantized q{.codes = Tensor::empty({x.numel() / 4}, DType::I32, *device_),
                .scales = Tensor::empty({x.numel() / kQuantizedBlock}, DType::F32, *device_),
                .range = range};
    ops::quantize(x, q);
    return q;
  }
  std::vector<float> values(const Quantized& q) {
    Tensor x = Tensor::empty({q.scales.numel() * kQuantizedBlock}, DType::F32, *device_);
    ops::dequantize(q, x);
    return read_values<float>(x);
  }
  /// Returns values over many powers of ten, like moments, in blocks of very different magnitude, some with a negative
  /// extreme.
  std::vector<float> random_values(QuantizedRange range, i64 blocks = 300) {
    std::mt19937 random(3);
    std::normal_distribution<double> normal;
    std::vector<float> all;
    for (i64 b = 0; b < blocks; ++b) {
      const double size = std::pow(10.0, 8 * normal(random) / 2);
      for (i64 i = 0; i < kQuantizedBlock; ++i) {
        const double x = size * normal(random) * std::pow(10.0, 2 * normal(random));
        all.push_back(static_cast<float>(is_positive(range) ? x * x : x));
      }
    }
    return all;
  }

  std::unique_ptr<Device> device_;
};

INSTANTIATE_TEST_SUITE_P(Devices, QuantizeTest, testing::ValuesIn(test::device_types()),
                         [](const auto& p) { return test::name_of(p.param); });

TEST_P(QuantizeTest, ValuesIncreaseAndIncludeZeroAndOne) {
  for (const QuantizedRange range : {QuantizedRange::Signed, QuantizedRange::NonNegative}) {
    const QuantizedValues v = quantized_values(range);
    EXPECT_TRUE(std::ranges::is_sorted(v, std::less_equal())) << "or two are the same";
    EXPECT_EQ(std::ranges::count(v, 0.0F), 1);
    EXPECT_EQ(v.back(), 1);
    EXPECT_EQ(v.front(), range == QuantizedRange::Signed ? -1 : 0);
  }
  EXPECT_NEAR(quantized_values(QuantizedRange::NonNegative)[1], 0.325e-6, 1e-12);
  EXPECT_NEAR(quantized_values(QuantizedRange::Signed)[128], 0.55e-6, 1e-12);
  EXPECT_NEAR(quantized_values(QuantizedRange::Signed)[254], 0.1 + 0.9 * 63.5 / 64, 1e-6);
}

/// The finite values of an fp8 format, divided by the largest one.
TEST_P(QuantizeTest, Fp8ValuesAreThoseOfFormat) {
  for (const auto& [range, format] :
       {std::pair(QuantizedRange::E4m3, Fp8Format::E4M3), std::pair(QuantizedRange::PositiveE5m2, Fp8Format::E5M2)}) {
    std::vector<float> expected;
    for (const float value : fp8_code_values(format))
      if (std::isfinite(value)) expected.push_back(value / fp8_max(format));
    std::ranges::sort(expected);
    expected.erase(std::unique(expected.begin(), expected.end()), expected.end());  // 0 and -0 are equal
    EXPECT_EQ(expected.size(), format == Fp8Format::E4M3 ? 253u : 247u);
    const QuantizedValues v = quantized_values(range);
    for (std::size_t code = 0; code < v.size(); ++code)
      EXPECT_EQ(v[code], code < expected.size() ? expected[code] : 1.0f) << code;
  }
}

/// Compares with a search through all values in double precision.
TEST_P(QuantizeTest, RoundsToNearestValue) {
  for (const QuantizedRange range : kRanges) {
    const std::vector<float> x = random_values(range), y = values(quantized(tensor(x), range));
    const QuantizedValues all = quantized_values(range);
    for (std::size_t i = 0; i < x.size(); ++i) {
      const std::size_t block = i / kQuantizedBlock * kQuantizedBlock;
      double scale = 0, nearest = 1e300;
      for (std::size_t k = block; k < block + kQuantizedBlock; ++k) scale = std::max(scale, std::abs(double(x[k])));
      for (const float value : all) nearest = std::min(nearest, std::abs(value * scale - x[i]));
      if (is_positive(range) && x[i] > 0) {
        const float smallest = all[static_cast<std::size_t>(min_positive_code(range))];
        EXPECT_GT(y[i], 0) << i;
        nearest = std::max(nearest, smallest * scale - x[i]);  // where 0 is nearer
      }
      EXPECT_LE(std::abs(double(y[i]) - x[i]), nearest + 1e-6 * std::abs(x[i]) + 1e-7 * scale * all[128]) << i;
    }
  }
}

/// A checkpoint, which stores dequantized values, must restore all bits.
TEST_P(QuantizeTest, IsIdempotent) {
  for (const QuantizedRange range : kRanges) {
    std::vector<float> x = random_values(range);
    std::fill(x.begin(), x.begin() + kQuantizedBlock, 0.0F);
    for (i64 i = 0; i < kQuantizedBlock; ++i) x[static_cast<std::size_t>(kQuantizedBlock + i)] *= 1e-30F;
    const Quantized once = quantized(tensor(x), range);
    const std::vector<float> y = values(once);
    const Quantized twice = quantized(tensor(y), range);
    EXPECT_EQ(read_values<i32>(once.codes), read_values<i32>(twice.codes));
    EXPECT_EQ(read_values<float>(once.scales), read_values<float>(twice.scales));
    EXPECT_EQ(y, values(twice));
    EXPECT_EQ(std::vector<float>(y.begin(), y.begin() + kQuantizedBlock), std::vector<float>(kQuantizedBlock));
  }
}

TEST_P(QuantizeTest, RejectsPartialBlocks) {
  const Tensor x = tensor(std::vector<float>(kQuantizedBlock + 4));
  EXPECT_THROW(quantized(x, QuantizedRange::Signed), Error);
}

}  // namespace
}  // namespace mcpp
