// Splitting of fp32 values into their bf16 rounding and a remainder, which together restore every bit.
#include "tensor/ops/low_precision/param_remainders.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <vector>

#include "tensor/ops/ops.h"
#include "tensor/transfer.h"
#include "tests/support/gpu.h"

namespace mcpp {
namespace {

class ParamRemaindersOpsTest : public testing::TestWithParam<DeviceType> {
 protected:
  void SetUp() override {
    if (const std::string why = test::why_missing(GetParam()); !why.empty()) GTEST_SKIP() << why;
    device_ = test::make_device(GetParam(), 2);
  }

  ParamRemainders allocate_remainders(i64 count) {
    return {.low = Tensor::zeros({count / 2}, DType::I32, *device_, MemoryClass::Other),
            .rounded_up = Tensor::zeros({count / 32}, DType::I32, *device_, MemoryClass::Other)};
  }
  /// Rounds the values with these bits to bf16 and joins them again.
  std::vector<u32> round_trip(const std::vector<u32>& bits) {
    const auto count = static_cast<i64>(bits.size());
    Tensor master = Tensor::empty({count}, DType::F32, *device_), model = Tensor::empty({count}, DType::BF16, *device_);
    std::vector<float> values(bits.size());
    std::memcpy(values.data(), bits.data(), bits.size() * sizeof(u32));
    write_values(values, master);
    ops::copy(master, model);
    ParamRemainders remainders = allocate_remainders(count);
    ops::param_remainders(master, remainders);
    ops::fill_zero(master);
    ops::join_param_remainders(model, remainders, master);
    std::vector<u32> back(bits.size());
    values = read_values<float>(master);
    std::memcpy(back.data(), values.data(), bits.size() * sizeof(u32));
    return back;
  }

  std::unique_ptr<Device> device_;
};

INSTANTIATE_TEST_SUITE_P(Devices, ParamRemaindersOpsTest, testing::ValuesIn(test::device_types()),
                         [](const auto& p) { return test::name_of(p.param); });

/// Covers each lower half with even and odd upper halves, zeros, subnormals, the largest values, which round to
/// infinity, and negative values.
TEST_P(ParamRemaindersOpsTest, RestoreEveryBit) {
  std::vector<u32> bits;
  for (const u32 upper : {0x0000U, 0x0001U, 0x007FU, 0x0080U, 0x3F80U, 0x3F81U, 0x3FFFU, 0x7F7FU, 0x8000U, 0x8001U,
                          0xBF80U, 0xBF81U, 0xFF7FU}) {
    for (u32 lower = 0; lower <= 0xFFFF; ++lower) bits.push_back(upper << 16 | lower);
  }
  for (const u32 infinity : {0x7F800000U, 0xFF800000U}) bits.insert(bits.end(), 32, infinity);
  EXPECT_TRUE(round_trip(bits) == bits);
}

/// The upper half of a midpoint, rounded to even, does not determine the direction of rounding, which requires the
/// extra bit.
TEST_P(ParamRemaindersOpsTest, DistinguishMidpoints) {
  std::vector<u32> bits(kRemainderBlock);
  for (std::size_t i = 0; i < bits.size(); ++i) bits[i] = (i % 2 == 0 ? 0x3F808000U : 0x3F7F8000U);  // both to 1
  EXPECT_EQ(round_trip(bits), bits);
}

TEST_P(ParamRemaindersOpsTest, PreserveNaN) {
  std::vector<u32> bits;
  for (const u32 x :
       {0x7FC00000U, 0xFFC00000U, 0x7F800001U, 0x7FFFFFFFU, 0xFF80FFFFU, 0x7FC08001U, 0x7F81FFFFU, 0xFFFFFFFFU})
    bits.insert(bits.end(), 8, x);
  for (const u32 x : round_trip(bits)) EXPECT_TRUE(std::isnan(std::bit_cast<float>(x))) << std::hex << x;
}

TEST_P(ParamRemaindersOpsTest, RejectPartialBlocksAndWrongTypes) {
  const auto refused = [&](i64 count, DType type, i64 capacity) {
    ParamRemainders to = allocate_remainders(capacity);
    EXPECT_THROW(ops::param_remainders(Tensor::zeros({count}, type, *device_, MemoryClass::Other), to), Error);
  };
  refused(96, DType::F32, 96);
  refused(64, DType::BF16, 64);
  refused(64, DType::F32, 128);
  Tensor master = Tensor::zeros({64}, DType::F32, *device_, MemoryClass::Other);
  EXPECT_THROW(ops::join_param_remainders(master, allocate_remainders(64), master), Error) << "the model is in bf16";
}

}  // namespace
}  // namespace mcpp
