// Layouts of two ranks with a GPU each, over NCCL, have the losses of one rank.
#include <gtest/gtest.h>

#include "tensor/cuda_device.h"
#include "tensor/on_device.h"
#include "tests/support/gpu.h"
#include "tests/support/layouts/layout_run.h"
#include "tests/support/tiny_model.h"

namespace mcpp {
namespace {

using test::RunLayout;
using test::RunResult;
using test::RunTask;

std::vector<RunLayout> nccl_layouts() {
  if (!kWithCuda) return {};
  return {{"tp2_sp", {.tp = 2, .sequence_parallel = true}},
          {"pp2", {.pp = 2}},
          {"dp2_zero1", {.dp = 2, .zero_stage = 1}},
          {"dp2_zero3", {.dp = 2, .zero_stage = 3}}};
}

int gpu_count() {
  if constexpr (kWithCuda) return cuda_device_count();
  return 0;
}

class NcclLayoutsTest : public testing::TestWithParam<RunLayout> {
 protected:
  void SetUp() override {
    if (!test::why_no_gpu().empty()) GTEST_SKIP() << test::why_no_gpu();
    if (gpu_count() < GetParam().ranks()) GTEST_SKIP() << "there are fewer GPUs than ranks";
  }
  static RunTask task() {
    ModelConfig model = test::tiny_llama();
    model.num_layers = 2;
    RunTask task = test::learnable_task(model, DType::F32);
    task.steps = 3;
    return task;
  }
  static RunResult run(const RunLayout& layout) { return test::run_layout(task(), layout, test::make_nccl_devices); }
};

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(NcclLayoutsTest);
INSTANTIATE_TEST_SUITE_P(Layouts, NcclLayoutsTest, testing::ValuesIn(nccl_layouts()),
                         [](const auto& p) { return str(p.param.name, "_cuda"); });

TEST_P(NcclLayoutsTest, LossesMatchOneRank) {
  const RunResult expected = run({}), result = run(GetParam());
  ASSERT_EQ(result.losses.size(), expected.losses.size());
  for (std::size_t i = 0; i < expected.losses.size(); ++i)
    EXPECT_LE(std::abs(result.losses[i] - expected.losses[i]) / expected.losses[i], 1e-5) << "step " << i;
}

}  // namespace
}  // namespace mcpp
