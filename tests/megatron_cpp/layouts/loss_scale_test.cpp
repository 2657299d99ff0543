// Training with a loss scale: a fixed power of two is bitwise identical to no scale, and a dynamic scale converges to a
// working value.
#include <gtest/gtest.h>

#include "tensor/ops/ops.h"
#include "tests/support/layouts/layout_run.h"
#include "tests/support/tiny_model.h"

namespace mcpp::loss_scale_test {
namespace {

using test::RunLayout;
using test::RunResult;
using test::RunTask;

ModelConfig gpt2() {
  ModelConfig config = test::tiny_gpt2();
  config.num_attention_heads = 4;  // two ranks can shard them
  return config;
}

RunTask task_of(const ModelConfig& model, DType dtype, double loss_scale = 0) {
  RunTask task = test::learnable_task(model, dtype);
  task.optimizer.loss_scale = loss_scale;
  return task;
}

const RunLayout kLayouts[]{{"one_rank", {}},
                           {"tp2_pp2_dp2_zero1", {.tp = 2, .pp = 2, .dp = 2, .first_layers = 2, .zero_stage = 1}}};

class FixedLossScaleTest : public testing::TestWithParam<std::tuple<RunLayout, DType>> {};
INSTANTIATE_TEST_SUITE_P(Layouts, FixedLossScaleTest,
                         testing::Combine(testing::ValuesIn(kLayouts), testing::Values(DType::F32, DType::BF16)),
                         [](const auto& p) {
                           return str(std::get<0>(p.param).name, "_", name_of(std::get<1>(p.param)));
                         });

TEST_P(FixedLossScaleTest, PowerOfTwoIsBitwiseIdentical) {
  const auto& [layout, dtype] = GetParam();
  for (const ModelConfig& model : {gpt2(), test::tiny_llama()}) {
    const RunResult plain = run_layout(task_of(model, dtype), layout);
    for (const double scale : {0x1p-10, 1.0, 0x1p16}) {
      const RunResult scaled = run_layout(task_of(model, dtype, scale), layout);
      EXPECT_EQ(scaled.losses, plain.losses);
      EXPECT_EQ(scaled.grad_norms, plain.grad_norms);
      EXPECT_EQ(scaled.weights, plain.weights);
    }
  }
}

TEST(FixedLossScaleTest, OtherValuesChangeOnlyRounding) {
  const RunResult plain = run_layout(task_of(test::tiny_llama(), DType::F32), {});
  const RunResult scaled = run_layout(task_of(test::tiny_llama(), DType::F32, 1000), {});
  for (std::size_t i = 0; i < plain.losses.size(); ++i) {
    EXPECT_NEAR(scaled.losses[i] / plain.losses[i], 1, 1e-5) << i;
    EXPECT_NEAR(scaled.grad_norms[i] / plain.grad_norms[i], 1, 1e-4) << i;
  }
}

/// The effect of one step on the loss scale of a run.
struct ScaleStep {
  bool skipped;
  Overflow overflow;
  double scale;
  double loss;
  bool operator==(const ScaleStep&) const = default;
};

enum class Order { Immediate, Deferred };

struct ScaleHistory {
  std::vector<ScaleStep> steps;
  test::Weights weights;
  int reruns = 0;  ///< number of repeated backward passes
};

/// Trains and reads the outcome of each step immediately, or deferred until after the next backward().
ScaleHistory train(const RunTask& task, const RunLayout& layout, Order order = Order::Immediate) {
  std::vector<ScaleHistory> by_rank(static_cast<std::size_t>(layout.ranks()));
  std::mutex mutex;
  test::Weights weights;
  run_local_ranks(layout.ranks(), [&](Communicator& world, int rank) {
    test::LayoutRank self(task, layout, world);
    ScaleHistory& history = by_rank[static_cast<std::size_t>(rank)];
    const auto settle = [&] {
      const StepOutcome outcome = self.state().outcome();
      history.steps.push_back({outcome.is_skipped, outcome.overflow, self.state().loss_scale().value(), outcome.loss});
    };
    for (i64 step = 0; step < task.steps; ++step) {
      self.backward(step);
      if (order == Order::Deferred && step > 0) settle();
      if (self.state().needs_backward_rerun()) {
        EXPECT_THROW(self.update(step), Error) << "the gradients have another scale";
        history.reruns += 1;
        self.backward(step);
      }
      self.update(step);
      if (order == Order::Immediate) settle();
    }
    if (order == Order::Deferred) settle();
    const std::lock_guard lock(mutex);
    self.collect(weights);
  });
  for (const ScaleHistory& history : by_rank) {
    EXPECT_EQ(history.steps, by_rank[0].steps) << "the ranks disagree";
    EXPECT_EQ(history.reruns, by_rank[0].reruns);
  }
  by_rank[0].weights = weights;
  return by_rank[0];
}

class DynamicLossScaleTest : public testing::TestWithParam<RunLayout> {};
INSTANTIATE_TEST_SUITE_P(Layouts, DynamicLossScaleTest, testing::ValuesIn(kLayouts),
                         [](const auto& p) { return p.param.name; });

TEST_P(DynamicLossScaleTest, RecoversFromOverflowAndGrowsAgain) {
  RunTask task = task_of(test::tiny_llama(), DType::F16);
  task.steps = 40;
  task.optimizer.initial_loss_scale = 0x1p32;
  task.optimizer.loss_scale_window = 10;
  const std::vector<ScaleStep> history = train(task, GetParam()).steps;
  std::size_t first = 0;
  while (first < history.size() && history[first].skipped) ++first;
  ASSERT_GE(first, 3u) << "nothing overflowed";
  ASSERT_LE(first, 25u);
  for (std::size_t i = 0; i < first; ++i) {
    EXPECT_EQ(history[i].overflow, Overflow::Handled) << i;
    EXPECT_EQ(history[i].scale, std::ldexp(1, 32 - static_cast<int>(i))) << "hysteresis 2: all but the first halve";
    EXPECT_TRUE(std::isfinite(history[i].loss)) << i;
  }
  // A full window of good steps doubles the scale, even if the doubled scale overflows.
  for (std::size_t i = first; i + 1 < first + 10; ++i) EXPECT_FALSE(history[i].skipped) << i;
  EXPECT_EQ(history[first + 9].scale, 2 * history[first].scale);
  EXPECT_LT(history.back().loss, 0.9 * history.front().loss) << "the task is not learned";
}

/// While the scale falls, grows and overflows again: each backward pass uses the right scale, or is repeated.
TEST_P(DynamicLossScaleTest, IsIndependentOfDeferredOutcome) {
  RunTask task = task_of(test::tiny_llama(), DType::F16);
  task.steps = 40;
  task.optimizer.initial_loss_scale = 0x1p32;
  task.optimizer.loss_scale_window = 2;
  const ScaleHistory immediate = train(task, GetParam()), deferred = train(task, GetParam(), Order::Deferred);
  EXPECT_EQ(deferred.steps, immediate.steps);
  EXPECT_EQ(deferred.weights, immediate.weights);
  EXPECT_EQ(immediate.reruns, 0);
  EXPECT_GT(deferred.reruns, 3);
  int good = 0, overflows = 0;
  for (const ScaleStep& step : immediate.steps) step.skipped ? ++overflows : ++good;
  EXPECT_GT(good, 10);
  EXPECT_LE(deferred.reruns, overflows);
}

/// The loss is not scaled, so no scale helps if it is NaN on one rank, e.g. because its memory fails.
TEST(DynamicLossScaleTest, ReportsNanLossOfOneRankAsFinal) {
  RunTask task = task_of(gpt2(), DType::F16);
  task.optimizer.initial_loss_scale = 0x1p10;
  for (const RunLayout& layout : {RunLayout{"tp2", {.tp = 2}}, kLayouts[1]}) {
    run_local_ranks(layout.ranks(), [&](Communicator& world, int rank) {
      test::LayoutRank self(task, layout, world);
      EXPECT_EQ(self.step(0).overflow, Overflow::None);
      self.backward(1);
      Tensor loss = self.state().loss_totals().flat(0, 1);
      if (rank == 1) ops::scale(loss, std::nan(""));
      self.update(1);
      const StepOutcome outcome = self.state().outcome();
      EXPECT_EQ(outcome.overflow, Overflow::Final) << layout.name << " rank " << rank;
      EXPECT_EQ(outcome.loss, std::numeric_limits<double>::infinity());
      EXPECT_TRUE(std::isfinite(outcome.grad_norm));
      EXPECT_EQ(outcome.tokens, task.global_batch_size * task.model.seq_length);
    });
  }
}

TEST_P(DynamicLossScaleTest, FailsOnlyAtLowestScale) {
  RunTask task = task_of(gpt2(), DType::F16);
  task.steps = 5;
  task.optimizer.initial_loss_scale = task.optimizer.min_loss_scale = 0x1p60;
  for (const ScaleStep& step : train(task, GetParam()).steps) {
    EXPECT_TRUE(step.skipped);
    EXPECT_EQ(step.overflow, Overflow::Final);
    EXPECT_EQ(step.scale, 0x1p60);
  }
}

}  // namespace
}  // namespace mcpp::loss_scale_test
