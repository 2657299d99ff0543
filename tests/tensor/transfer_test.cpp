#include "tensor/transfer.h"

#include <algorithm>

#include "tests/support/errors.h"
#include "tests/support/gpu.h"
#include "tests/support/tensors.h"

namespace mcpp::test {
namespace {

class TransferTest : public testing::TestWithParam<DeviceType> {
 protected:
  void SetUp() override {
    if (const std::string why = why_missing(GetParam()); !why.empty()) GTEST_SKIP() << why;
    device_ = make_device(GetParam());
  }
  Device& device() { return *device_; }

 private:
  std::unique_ptr<Device> device_;
};

INSTANTIATE_TEST_SUITE_P(Devices, TransferTest, testing::ValuesIn(device_types()),
                         [](const auto& p) { return name_of(p.param); });

TEST_P(TransferTest, WritesAndReadsSliceOfTensor) {
  Tensor full = integers_of({1, 2, 3, 4, 5, 6}, device());
  Tensor part = full.slice(2, 5);
  write_values(std::vector<i32>{7, 8, 9}, part);
  EXPECT_EQ(read_values<i32>(part), (std::vector<i32>{7, 8, 9}));
  EXPECT_EQ(read_values<i32>(full), (std::vector<i32>{1, 2, 7, 8, 9, 6}));
}

TEST_P(TransferTest, SourceMayChangeImmediatelyAfterWrite) {
  std::vector<i32> values(1 << 20, 1);
  Tensor t = integers_of(values, device());
  for (i32 i = 2; i < 10; ++i) {
    std::ranges::fill(values, i);
    write_values(values, t);
    std::ranges::fill(values, -1);
    EXPECT_EQ(read_values<i32>(t), std::vector<i32>(values.size(), i));
  }
}

/// Writes more than the capacity of the pinned ring without waiting for the device in between.
TEST_P(TransferTest, ManyWritesInFlightArriveIntact) {
  constexpr i64 kCount = i64{3} << 20;
  std::vector<Tensor> tensors;
  for (i32 i = 0; i < 5; ++i) {
    const std::vector<i32> values(kCount, i);
    tensors.push_back(Tensor::empty({kCount}, DType::I32, device()));
    write_values(values, tensors.back());
  }
  for (i32 i = 0; i < 5; ++i) {
    const std::vector<i32> values = read_values<i32>(tensors[static_cast<std::size_t>(i)]);
    EXPECT_EQ(std::ranges::count(values, i), kCount) << "tensor " << i;
  }
}

TEST_P(TransferTest, HostValuesReachTensorAfterWriteBack) {
  const Tensor t = integers_of({1, 2, 3}, device());
  HostValues<i32> values(t);
  ASSERT_EQ(values.size(), 3u);
  values[1] = 5;
  values.write_back();
  EXPECT_EQ(read_values<i32>(t), (std::vector<i32>{1, 5, 3}));
}

TEST(HostValuesTest, AliasTensorOnCpu) {
  CpuDevice device;
  const Tensor t = integers_of({1, 2, 3}, device);
  HostValues<i32> values(t);
  values[1] = 5;
  EXPECT_EQ(read_values<i32>(t), (std::vector<i32>{1, 5, 3}));
}

TEST_P(TransferTest, SupportsEmptyTensors) {
  Tensor t = Tensor::empty({0, 4}, DType::F32, device());
  write_values(std::vector<float>{}, t);
  EXPECT_TRUE(read_values<float>(t).empty());
}

TEST_P(TransferTest, RejectsMismatchedTypesAndSizes) {
  Tensor t = integers_of({1, 2, 3}, device());
  EXPECT_NE(error_of([&] { read_values<float>(t); }).find("the tensor is int32"), std::string::npos);
  EXPECT_NE(error_of([&] { write_values(std::vector<i32>{1, 2}, t); }), "");
  EXPECT_NE(error_of([&] { write_values(std::vector<float>{1, 2, 3}, t); }), "");
  EXPECT_EQ(read_values<i32>(t), (std::vector<i32>{1, 2, 3}));
}

}  // namespace
}  // namespace mcpp::test
