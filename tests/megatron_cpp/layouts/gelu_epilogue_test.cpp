// GELU fused into GEMMs. A CPU computes them one after the other, so fp32 is bitwise identical to separate
// GELU.
#include <gtest/gtest.h>

#include "tests/support/layouts/layout_run.h"
#include "tests/support/tiny_model.h"

namespace mcpp {
namespace {

using test::RunLayout;
using test::RunResult;
using test::RunTask;

RunTask task_of(DType dtype, bool has_biases, bool gelu_epilogue) {
  ModelConfig model = test::tiny_gpt2();
  model.num_layers = 4, model.num_attention_heads = 4;
  model.add_bias_linear = has_biases;
  RunTask task = test::learnable_task(model, dtype);
  task.steps = 6;
  task.gelu_epilogue = gelu_epilogue;
  return task;
}

TEST(GeluEpilogueLayoutsTest, AreBitwiseIdenticalInFp32) {
  for (const RunLayout& layout :
       {RunLayout{"one", {}}, RunLayout{"tp2_sp", {.tp = 2, .sequence_parallel = true}},
        RunLayout{"pp2_zb_h1", {.pp = 2, .schedule = ScheduleKind::ZbH1}},
        RunLayout{"full_recompute", {.recompute = {.granularity = Recompute::Granularity::Full}}}}) {
    for (const bool has_biases : {true, false}) {
      SCOPED_TRACE(layout.name);
      const RunResult separate = run_layout(task_of(DType::F32, has_biases, false), layout),
                      fused = run_layout(task_of(DType::F32, has_biases, true), layout);
      EXPECT_EQ(fused.losses, separate.losses);
      EXPECT_EQ(fused.weights, separate.weights);
    }
  }
}

TEST(GeluEpilogueLayoutsTest, AreCloseInBf16) {
  const RunResult separate = run_layout(task_of(DType::BF16, true, false), {}),
                  fused = run_layout(task_of(DType::BF16, true, true), {});
  for (std::size_t i = 0; i < separate.losses.size(); ++i)
    EXPECT_NEAR(fused.losses[i] / separate.losses[i], 1, 5e-3) << "step " << i;
}

}  // namespace
}  // namespace mcpp
