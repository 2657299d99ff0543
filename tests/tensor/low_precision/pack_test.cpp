#include "tensor/ops/low_precision/pack.h"

#include <gtest/gtest.h>
#include <hwy/highway.h>

#include <cstring>
#include <random>

#include "tensor/ops/ops.h"
#include "tests/support/packed.h"

namespace mcpp {
namespace {

class PackTest : public testing::Test {
 protected:
  Tensor tensor(const std::vector<float>& values, DType type = DType::F32) {
    Tensor t = Tensor::empty({static_cast<i64>(values.size())}, DType::F32, device_);
    std::memcpy(t.raw(), values.data(), values.size() * sizeof(float));
    return in(t, type);
  }
  Tensor in(const Tensor& t, DType type) {
    if (t.dtype() == type) return t;
    Tensor other = Tensor::empty(t.shape(), type, device_);
    ops::copy(t, other);
    return other;
  }
  std::vector<float> values(const Tensor& t) {
    const Tensor x = in(t, DType::F32);
    return {x.data<float>(), x.data<float>() + x.numel()};
  }
  Tensor packed(const Tensor& x, DType type = DType::I32) {
    Tensor message = Tensor::empty({message_elements(type, x.numel())}, type, device_);
    ops::pack(x, message);
    return message;
  }
  Tensor unpacked(const Tensor& message, DType type = DType::F32) {
    Tensor x = Tensor::empty({message.numel() / kPackedWords * kPackedBlock}, type, device_);
    ops::unpack(message, x);
    return x;
  }
  std::vector<float> round_trip(const std::vector<float>& x) { return values(unpacked(packed(tensor(x)))); }

  /// Returns values in blocks of very different magnitude.
  static std::vector<float> random_values(i64 blocks = 700) {
    std::mt19937 random(5);
    std::normal_distribution<double> normal;
    std::vector<float> all;
    for (i64 b = 0; b < blocks; ++b) {
      const double size = std::pow(10.0, 5 * normal(random));
      for (i64 i = 0; i < kPackedBlock; ++i) all.push_back(static_cast<float>(size * normal(random)));
    }
    return all;
  }

  CpuDevice device_{{.threads = 2}};
};

TEST_F(PackTest, UsesOneBytePerValueAndOneScalePerBlock) {
  EXPECT_EQ(packed_words(64) * 4, 64 + 4);
  EXPECT_EQ(packed_words(640), 10 * packed_words(64));
}

TEST_F(PackTest, MatchesDefinitionAtEachInstructionLevel) {
  const std::vector<float> x = random_values(), expected = test::packed_and_back(x);
  for (const i64 level : hwy::SupportedAndGeneratedTargets()) {
    hwy::SetSupportedTargetsForTest(level);
    EXPECT_EQ(round_trip(x), expected) << hwy::TargetName(level);
  }
  hwy::SetSupportedTargetsForTest(0);
}

TEST_F(PackTest, ErrorIsAtMostHalfStep) {
  const std::vector<float> x = random_values(), y = round_trip(x);
  for (std::size_t begin = 0; begin < x.size(); begin += kPackedBlock) {
    double largest = 0;
    for (std::size_t i = begin; i < begin + kPackedBlock; ++i) largest = std::max(largest, std::abs(double(x[i])));
    for (std::size_t i = begin; i < begin + kPackedBlock; ++i)
      ASSERT_LE(std::abs(double(y[i]) - x[i]), largest / 254 * 1.00001) << i;
  }
}

TEST_F(PackTest, SupportsAllTypes) {
  const Tensor x = tensor(random_values(3));
  for (const DType type : {DType::BF16, DType::F16, DType::F64}) {
    // Within the range of fp16.
    Tensor small = tensor(values(x));
    for (i64 i = 0; i < small.numel(); ++i) small.data<float>()[i] = std::fmod(small.data<float>()[i], 1000.0F);
    const Tensor typed = in(small, type);
    const std::vector<float> expected = test::packed_and_back(values(typed));
    EXPECT_EQ(values(unpacked(packed(typed), type)), values(in(tensor(expected), type))) << name_of(type);
  }
}

TEST_F(PackTest, SumOfNoMessagesIsZero) {
  for (const DType type : {DType::I32, DType::BF16}) {
    Tensor nothing = tensor(std::vector<float>(64, 5));
    ops::sum_unpacked(Tensor::empty({0}, type, device_), nothing);
    EXPECT_EQ(values(nothing), std::vector<float>(64, 0.0F));
  }
}

TEST_F(PackTest, SlicesOfMessageAreMessages) {
  const std::vector<float> x = random_values(6), full = round_trip(x);
  const Tensor message = packed(tensor(x));
  const std::vector<float> part = values(unpacked(message.flat(packed_words(128), packed_words(192))));
  EXPECT_EQ(part, std::vector<float>(full.begin() + 128, full.begin() + 320));
}

TEST_F(PackTest, PropagatesNonFiniteValues) {
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
                          -std::numeric_limits<float>::infinity()}) {
    std::vector<float> x = random_values(3);
    x[70] = bad;
    const std::vector<float> y = round_trip(x);
    for (std::size_t i = 0; i < y.size(); ++i) EXPECT_EQ(std::isnan(y[i]), i / kPackedBlock == 1) << i;
  }
}

TEST_F(PackTest, KeepsZerosAndFlushesTinyValues) {
  EXPECT_EQ(round_trip(std::vector<float>(128, 0.0F)), std::vector<float>(128, 0.0F));
  EXPECT_EQ(round_trip(std::vector<float>(64, 0x1p-101F)), std::vector<float>(64, 0.0F));
  EXPECT_EQ(round_trip(std::vector<float>(64, -3.0F)), test::packed_and_back(std::vector<float>(64, -3.0F)));
  EXPECT_EQ(round_trip(std::vector<float>(64, 3e38F))[0], test::packed_and_back(std::vector<float>(64, 3e38F))[0]);
}

/// Values of all magnitudes are rounded to the nearest bf16.
TEST_F(PackTest, RoundsToBf16AtEachInstructionLevel) {
  std::vector<float> x = random_values(20);
  x.resize(x.size() - 3);
  x[0] = 0, x[1] = -0.0F, x[2] = 0x1p-140F, x[3] = 3.4e38F, x[4] = 1 + 0x1p-8F, x[5] = 1 + 0x3p-8F;
  const std::vector<float> expected = test::rounded_to_bf16(x);
  for (const i64 level : hwy::SupportedAndGeneratedTargets()) {
    hwy::SetSupportedTargetsForTest(level);
    const Tensor message = packed(tensor(x), DType::BF16);
    EXPECT_EQ(values(message), expected) << hwy::TargetName(level);
    Tensor back = tensor(std::vector<float>(x.size()));
    ops::unpack(message, back);
    EXPECT_EQ(values(back), expected) << hwy::TargetName(level);
  }
  hwy::SetSupportedTargetsForTest(0);
}

TEST_F(PackTest, PropagatesNonFiniteValuesInBf16) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity(), kNan = std::numeric_limits<float>::quiet_NaN();
  const Tensor messages = packed(tensor({kInfinity, -kInfinity, kNan, kInfinity, 1, 2, 3, -kInfinity}), DType::BF16);
  Tensor sum = tensor(std::vector<float>(4));
  ops::sum_unpacked(messages, sum);
  EXPECT_EQ(sum.data<float>()[0], kInfinity);
  EXPECT_EQ(sum.data<float>()[1], -kInfinity);
  EXPECT_TRUE(std::isnan(sum.data<float>()[2]));
  EXPECT_TRUE(std::isnan(sum.data<float>()[3]));
}

TEST_F(PackTest, RejectsMismatchedShapes) {
  Tensor message = Tensor::empty({packed_words(64)}, DType::I32, device_);
  EXPECT_THROW(ops::pack(tensor(std::vector<float>(63)), message), Error);
  EXPECT_THROW(ops::pack(tensor(std::vector<float>(128)), message), Error);
  Tensor rounded = Tensor::empty({63}, DType::BF16, device_), of_halves = Tensor::empty({64}, DType::F16, device_);
  EXPECT_THROW(ops::pack(tensor(std::vector<float>(64)), rounded), Error);
  EXPECT_THROW(ops::pack(tensor(std::vector<float>(64)), of_halves), Error);
  Tensor narrow = tensor(std::vector<float>(64), DType::BF16);
  EXPECT_THROW(ops::sum_unpacked(message, narrow), Error);
  Tensor longer = tensor(std::vector<float>(128));
  EXPECT_THROW(ops::sum_unpacked(message, longer), Error);
}

}  // namespace
}  // namespace mcpp
