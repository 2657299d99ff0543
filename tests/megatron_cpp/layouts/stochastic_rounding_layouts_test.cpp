// bf16 weights without master weights on any layout: bitwise identical where no sum is reordered, and resumable on any
// layout, with and without master weights. Ranks are threads.
#include <gtest/gtest.h>

#include "tests/support/disk_folder.h"
#include "tests/support/layouts/compare_runs.h"
#include "tests/support/layouts/resumed_run.h"
#include "tests/support/layouts/state_layouts.h"
#include "tests/support/tiny_model.h"

namespace mcpp::stochastic_rounding_layouts_test {
namespace {

using test::expect_same_bits;
using test::load_and_continue;
using test::named;
using test::Numbers;
using test::run_layout;
using test::RunLayout;
using test::RunTask;
using test::save_and_continue;

/// Groups of layouts with the same sums. ZeRO 2 and 3 reduce the gradient of each microbatch, the others their sum.
const std::vector<std::vector<RunLayout>> kSameSums{
    {{"dp2", {.dp = 2}}, {"dp2_zero1", {.dp = 2, .zero_stage = 1}}},
    {{"dp2_zero2", {.dp = 2, .zero_stage = 2}}, {"dp2_zero3", {.dp = 2, .zero_stage = 3}}},
    {{"one_rank", {}}, {"pp2", {.pp = 2}}, {"pp2_zb_v", {.pp = 2, .schedule = ScheduleKind::ZbV, .chunks = 2}}},
    {{"tp2", {.tp = 2}}, {"tp2_pp2", {.tp = 2, .pp = 2}}},
    {{"tp2_dp2", {.tp = 2, .dp = 2}}, {"tp2_pp2_dp2_zero1", {.tp = 2, .pp = 2, .dp = 2, .zero_stage = 1}}},
    {{"cp2_dp2", {.cp = 2, .dp = 2}}, {"cp2_dp2_zero1", {.cp = 2, .dp = 2, .zero_stage = 1}}},
};

class StochasticRoundingLayoutsTest : public testing::Test {
 protected:
  static RunTask with_master() {
    ModelConfig model = test::tiny_gpt2();
    model.num_layers = 4;
    model.hidden_size = 32;
    model.num_attention_heads = 4;
    model.seq_length = 8;
    RunTask task = test::learnable_task(model, DType::BF16);
    task.steps = 6;
    return task;
  }
  static RunTask rounded(RunTask task = with_master()) {
    task.optimizer.stochastic_rounding = true;
    return task;
  }

  const test::DiskFolder folder_;
  const test::ScratchFolder scratch_;
};

TEST_F(StochasticRoundingLayoutsTest, IsBitwiseIdenticalWhenSumsAreEqual) {
  for (const OptimizerKind kind : {OptimizerKind::Adam, OptimizerKind::Muon}) {
    RunTask task = rounded();
    task.optimizer.optimizer = kind;
    for (const std::vector<RunLayout>& layouts : kSameSums) {
      const test::RunResult first = run_layout(task, layouts.front());
      for (std::size_t i = 1; i < layouts.size(); ++i) {
        SCOPED_TRACE(str(enum_name(kind), " ", layouts[i].name));
        expect_same_bits(run_layout(task, layouts[i]), first);
      }
    }
  }
}

TEST_F(StochasticRoundingLayoutsTest, IsBitwiseIdenticalWithExpertsAndClippedLogits) {
  RunTask experts = rounded();
  experts.model.moe.num_experts = 4;
  experts.model.moe.router_topk = 2;
  expect_same_bits(run_layout(experts, {"ep2_zero1", {.dp = 4, .ep = 2, .zero_stage = 1}}),
                   run_layout(experts, {"ep2", {.dp = 4, .ep = 2}}));
  RunTask clipped = rounded();
  clipped.optimizer.qk_clip = true;
  clipped.optimizer.qk_clip_threshold = 0.01;
  const test::RunResult result = run_layout(clipped, {"dp2", {.dp = 2}});
  expect_same_bits(run_layout(clipped, {"dp2_zero1", {.dp = 2, .zero_stage = 1}}), result);
  EXPECT_NE(result.weights, run_layout(rounded(), {"dp2", {.dp = 2}}).weights) << "logits are clipped";
}

TEST_F(StochasticRoundingLayoutsTest, IsBitwiseIdenticalOnAnyTier) {
  const RunLayout layout{"dp2_zero3", {.dp = 2, .zero_stage = 3}};
  const test::RunResult on_device = run_layout(rounded(), layout);
  for (const OffloadTier states : {OffloadTier::Device, OffloadTier::File}) {
    for (const OffloadTier weights : {OffloadTier::Host, OffloadTier::File}) {
      SCOPED_TRACE(str(enum_name(states), " ", enum_name(weights)));
      RunTask task = rounded();
      task.optimizer.offload = states;
      task.optimizer.offload_params = weights;
      task.optimizer.offload_segment_size = 700;
      task.optimizer.offload_folder = folder_.path().string();
      expect_same_bits(run_layout(task, layout), on_device);
    }
  }
}

TEST_F(StochasticRoundingLayoutsTest, ResumesBitwiseOnAnyLayout) {
  for (const std::vector<RunLayout>& layouts : kSameSums) {
    const Path folder = scratch_ / layouts.front().name;
    const Numbers losses = save_and_continue(rounded(), layouts.front(), folder);
    for (const RunLayout& layout : layouts) {
      SCOPED_TRACE(layout.name);
      EXPECT_EQ(load_and_continue(rounded(), layout, folder), losses);
    }
    CheckpointReader reader(folder / checkpoint_name(2));
    for (const TensorEntry& tensor : reader.manifest().tensors)
      EXPECT_FALSE(tensor.name.starts_with(optimizer_tensor(kMasterState, ""))) << tensor.name;
  }
}

/// A run may begin or end to store master weights: they start from the weights, and end as their bf16 values.
TEST_F(StochasticRoundingLayoutsTest, LoadsCheckpointsWithAndWithoutMasterWeights) {
  const RunLayout from{"dp2_zero1", {.dp = 2, .zero_stage = 1}};
  const Path rounded_folder = scratch_ / "rounded", copied_folder = scratch_ / "copied";
  const Numbers rounded_losses = save_and_continue(rounded(), from, rounded_folder);
  const Numbers copied_losses = save_and_continue(with_master(), from, copied_folder);
  for (const RunLayout& to : named(test::kStateLayouts, {"one_rank", "dp4_hsdp_zero3", "tp2_pp2_dp2_zero1"})) {
    SCOPED_TRACE(to.name);
    const Numbers copied = load_and_continue(with_master(), to, rounded_folder),
                  without = load_and_continue(rounded(), to, copied_folder);
    for (std::size_t i = 0; i < rounded_losses.size(); ++i) {
      EXPECT_NEAR(copied[i] / rounded_losses[i], 1, 5e-3);
      EXPECT_NEAR(without[i] / copied_losses[i], 1, 5e-3);
    }
  }
}

/// The weights of training with fp32 master weights are the expected values of those without.
TEST_F(StochasticRoundingLayoutsTest, LearnsLikeTrainingWithMasterWeights) {
  RunTask task = with_master();
  task.steps = 40;
  const Numbers copied = run_layout(task, {"dp2", {.dp = 2}}).losses,
                without = run_layout(rounded(task), {"dp2", {.dp = 2}}).losses;
  EXPECT_LT(copied.back(), 0.8 * copied.front());
  EXPECT_NEAR(without.back() / copied.back(), 1, 0.02);
}

}  // namespace
}  // namespace mcpp::stochastic_rounding_layouts_test
