// Interpolation of rates that were measured at some sizes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "plan/cost/kernel_times.h"
#include "plan/hardware/hardware.h"
#include "tests/support/layouts/toy_cluster.h"

namespace mcpp {
namespace {

/// GEMMs of m x n x k reach m + 10 n + 100 k GFLOP/s at sizes of 100 and 400; attention reaches its length.
MeasuredRates rates() {
  MeasuredRates r;
  r.sizes = {100, 400};
  for (const i64 m : r.sizes)
    for (const i64 n : r.sizes)
      for (const i64 k : r.sizes) {
        const auto rate = static_cast<double>(m + 10 * n + 100 * k);
        r.forward.push_back(rate), r.input_gradient.push_back(2 * rate), r.weight_gradient.push_back(3 * rate);
      }
  r.attention_lengths = {128, 512};
  r.attention_widths = {64};
  r.attention_forward = {128, 512}, r.attention_backward = {256, 1024};
  r.norm_forward = {1, 2}, r.norm_backward = {3, 4}, r.residual_forward = {5, 6}, r.residual_backward = {7, 8};
  r.activation_forward = {1, 2, 3, 4, 5, 5}, r.activation_backward = {6, 7, 8, 9, 10, 10};
  return r;
}

TEST(MeasuredRatesTest, AreExactAtMeasuredSizes) {
  const MeasuredRates r = rates();
  const auto rate = [&](const MatmulShape& shape, GemmPass pass) {
    return shape.flops() / r.gemm_seconds(shape, pass) / 1e9;
  };
  EXPECT_NEAR(rate({.m = 100, .n = 400, .k = 100}, GemmPass::Forward), 100 + 4000 + 10000, 1e-6);
  EXPECT_NEAR(rate({.m = 400, .n = 100, .k = 400}, GemmPass::WeightGradient), 3 * (400 + 1000 + 40000), 1e-6);
  EXPECT_NEAR(rate({.m = 4000, .n = 10, .k = 9999, .batch = 8}, GemmPass::InputGradient), 2 * (400 + 1000 + 40000),
              1e-6);  // sizes are clamped to the measured range
  EXPECT_NEAR(r.attention_rate(512, 64, true), 1024e9, 1);
  EXPECT_NEAR(r.attention_rate(100000, 200, false), 512e9, 1);
}

TEST(MeasuredRatesTest, InterpolateTimeBetweenSizes) {
  const MeasuredRates r = rates();
  const auto seconds_of_flop = [&](i64 m) {
    const MatmulShape shape{.m = m, .n = 100, .k = 100};
    return r.gemm_seconds(shape, GemmPass::Forward) / shape.flops();
  };
  EXPECT_NEAR(seconds_of_flop(200), (seconds_of_flop(100) + seconds_of_flop(400)) / 2, 1e-18);  // halfway by logarithm
  EXPECT_LT(seconds_of_flop(300), seconds_of_flop(150));
}

TEST(MeasuredRatesTest, ReplaceTileAndByteEstimates) {
  Hardware hardware = test::toy_cluster(100, 10);
  Workload work = test::toy_workload(2, 400, 4, 1);
  const KernelTraits program;
  const double by_bytes = kernel_times(hardware, program, work).norm.forward;
  hardware.measured_bf16 = rates();
  EXPECT_NE(by_bytes, 1e-9);
  EXPECT_DOUBLE_EQ(kernel_times(hardware, program, work).norm.forward, 1e-9);
  EXPECT_DOUBLE_EQ(kernel_times(hardware, program, work).residual.backward, 8e-9);  // with dropout
  work.model.hidden_dropout = 0;
  EXPECT_DOUBLE_EQ(kernel_times(hardware, program, work).residual.backward, 7e-9);
  const MatmulShape shape{.m = 400, .n = 400, .k = 400};
  EXPECT_EQ(gemm_seconds(hardware, GemmType::Bf16, shape, 2),
            hardware.measured_bf16.gemm_seconds(shape, GemmPass::Forward));
  EXPECT_EQ(hardware.measured(GemmType::Fp32), nullptr) << "nothing was measured";
}

TEST(MeasuredRatesTest, RejectIncompleteLists) {
  MeasuredRates r = rates();
  r.sizes = {100, 100, 200};
  r.norm_forward = {1};
  r.attention_widths.clear();
  std::vector<std::string> found;
  r.add_conflicts("measured_bf16", found);
  using testing::HasSubstr;
  EXPECT_THAT(found, testing::IsSupersetOf({HasSubstr("measured_bf16.sizes: must increase"),
                                            HasSubstr("measured_bf16.forward: has 8 elements, must have 27"),
                                            HasSubstr("measured_bf16.norm_forward: has 1 elements, must have 2"),
                                            HasSubstr("measured_bf16.attention_lengths")}));
  found.clear();
  MeasuredRates().add_conflicts("measured_bf16", found);  // nothing was measured
  EXPECT_TRUE(found.empty());
}

}  // namespace
}  // namespace mcpp
