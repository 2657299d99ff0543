#include "tensor/transfer.h"

#include "tests/support/errors.h"
#include "tests/support/tensors.h"

namespace mcpp::test {
namespace {

TEST(Transfer, WritesAndReadsAPartOfATensor) {
  CpuDevice device;
  Tensor whole = integers_of({1, 2, 3, 4, 5, 6}, device);
  Tensor part = whole.slice(2, 5);
  write_values(std::vector<i32>{7, 8, 9}, part);
  EXPECT_EQ(read_values<i32>(part), (std::vector<i32>{7, 8, 9}));
  EXPECT_EQ(read_values<i32>(whole), (std::vector<i32>{1, 2, 7, 8, 9, 6}));
}

TEST(Transfer, HostValuesAreTheTensorsOnTheCpu) {
  CpuDevice device;
  const Tensor t = integers_of({1, 2, 3}, device);
  HostValues<i32> values(t);
  ASSERT_EQ(values.size(), 3u);
  values[1] = 5;
  EXPECT_EQ(read_values<i32>(t), (std::vector<i32>{1, 5, 3}));
  values.write_back();
  EXPECT_EQ(read_values<i32>(t), (std::vector<i32>{1, 5, 3}));
}

TEST(Transfer, EmptyTensors) {
  CpuDevice device;
  Tensor t = Tensor::empty({0, 4}, DType::F32, device);
  write_values(std::vector<float>{}, t);
  EXPECT_TRUE(read_values<float>(t).empty());
}

TEST(Transfer, RefusesOtherTypesAndSizes) {
  CpuDevice device;
  Tensor t = integers_of({1, 2, 3}, device);
  EXPECT_NE(error_of([&] { read_values<float>(t); }).find("the tensor is int32"), std::string::npos);
  EXPECT_NE(error_of([&] { write_values(std::vector<i32>{1, 2}, t); }), "");
  EXPECT_NE(error_of([&] { write_values(std::vector<float>{1, 2, 3}, t); }), "");
  EXPECT_EQ(read_values<i32>(t), (std::vector<i32>{1, 2, 3}));
}

}  // namespace
}  // namespace mcpp::test
