#include <gtest/gtest.h>

#include "megatron_cpp/setup/device_peaks.h"

namespace mcpp {
namespace {

TEST(RatedFlopsTest, DependOnDeviceVariant) {
  EXPECT_DOUBLE_EQ(rated_flops("NVIDIA H200", DType::BF16, false), 989.4e12);
  EXPECT_DOUBLE_EQ(rated_flops("NVIDIA GH200 480GB", DType::BF16, false), 989.4e12);
  EXPECT_DOUBLE_EQ(rated_flops("NVIDIA H100 80GB HBM3", DType::BF16, false), 989.4e12);
  EXPECT_DOUBLE_EQ(rated_flops("NVIDIA H100 PCIe", DType::BF16, false), 756e12);
  EXPECT_DOUBLE_EQ(rated_flops("NVIDIA A100-SXM4-80GB", DType::BF16, false), 311.8e12);
}

TEST(RatedFlopsTest, DependOnType) {
  EXPECT_DOUBLE_EQ(rated_flops("NVIDIA H200", DType::F32, true), 494.7e12);
  EXPECT_DOUBLE_EQ(rated_flops("NVIDIA H200", DType::F32, false), 66.9e12);
  EXPECT_DOUBLE_EQ(rated_flops("NVIDIA A100-PCIE-40GB", DType::F64, false), 19.5e12);
}

TEST(RatedFlopsTest, AreUnknownForOtherDevices) {
  EXPECT_EQ(rated_flops("NVIDIA Something 1", DType::BF16, false), 0);
  EXPECT_EQ(rated_flops("avx512", DType::F32, false), 0);
}

}  // namespace
}  // namespace mcpp
