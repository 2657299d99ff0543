// A signal aborts a step at any pass, on one rank of any layout: no rank blocks, and the step has no effect.
#include <gtest/gtest.h>

#include "megatron_cpp/train/signals.h"
#include "tests/support/build.h"
#include "tests/support/layouts/layout_run.h"
#include "tests/support/tiny_model.h"

namespace mcpp::aborted_step_test {
namespace {

using test::LayoutRank;
using test::RunLayout;
using test::RunTask;
using test::SignalAfter;
using test::Weights;

constexpr i64 kNever = 1 << 30;

/// GPT-2 with tied embeddings and dropout, and with a loss scale that must ignore the step.
RunTask task() {
  ModelConfig model = test::tiny_gpt2();
  model.num_layers = 4;
  model.num_attention_heads = 2;
  model.seq_length = 8;
  model.hidden_dropout = model.attention_dropout = 0.1;
  RunTask task = test::learnable_task(model);
  task.steps = 3;
  return task;
}

/// Messages of different sizes: two layers of multi-token prediction in a stage without the output.
RunTask prediction_task() {
  ModelConfig model = test::tiny_llama();
  model.num_layers = 4;
  model.seq_length = 8;
  model.mtp_num_layers = 2;
  RunTask task = test::learnable_task(model);
  task.steps = 3;
  return task;
}

const RunLayout kPredictionStageLayouts[]{
    {"pp2_first_stage", {.pp = 2, .stages = "Ettttmm|L"}},
    {"pp3_dp2", {.pp = 3, .dp = 2, .stages = "Ett|ttmm|L"}},
    {"pp4_zb_h1", {.pp = 4, .schedule = ScheduleKind::ZbH1, .stages = "Ett|tt|mm|L"}},
    {"pp2_zb_v", {.pp = 2, .schedule = ScheduleKind::ZbV, .chunks = 2, .stages = "Ett|t|tmm|L"}},
};

const RunLayout kLayouts[]{
    {},
    {"tp2_sp", {.tp = 2, .sequence_parallel = true}},
    {"dp2", {.dp = 2}},
    {"dp2_zero1", {.dp = 2, .zero_stage = 1}},
    {"dp2_zero2", {.dp = 2, .zero_stage = 2}},
    {"dp2_zero3", {.dp = 2, .zero_stage = 3}},
    {"dp4_hsdp", {.dp = 4, .zero_stage = 3, .instances = 2}},
    {"cp2", {.cp = 2}},
    {"cp2_a2a_dp2_zero3", {.cp = 2, .dp = 2, .cp_comm_type = CpCommType::A2a, .zero_stage = 3}},
    {"tp2_cp2_pp2", {.tp = 2, .cp = 2, .pp = 2, .cp_comm_type = CpCommType::AllGather}},
    {"pp2_gpipe", {.pp = 2, .schedule = ScheduleKind::GPipe}},
    {"pp2_dp2", {.pp = 2, .dp = 2}},
    {"pp2_dp2_zero3", {.pp = 2, .dp = 2, .zero_stage = 3}},
    {"pp2_interleaved_dp2", {.pp = 2, .dp = 2, .schedule = ScheduleKind::Interleaved, .chunks = 2, .zero_stage = 1}},
    {"pp2_zb_h1_tp2", {.tp = 2, .pp = 2, .schedule = ScheduleKind::ZbH1}},
    {"pp2_zb_v_dp2", {.pp = 2, .dp = 2, .schedule = ScheduleKind::ZbV, .chunks = 2}},
};

struct Result {
  Weights weights;
  test::Numbers losses;
};

/// Trains three steps. Before the second, it is tried once and aborted on `signaled_rank` after `passes`.
Result train(const RunTask& run_task, const RunLayout& layout, int signaled_rank, i64 passes) {
  Result result;
  std::mutex mutex;
  run_local_ranks(layout.ranks(), [&](Communicator& world, int rank) {
    LayoutRank self(run_task, layout, world);
    test::Numbers losses{self.step(0).loss};
    if (signaled_rank >= 0) {
      SignalAfter watch(rank == signaled_rank ? passes : kNever);
      self.state().set_observer(&watch);
      const i64 steps_before = self.state().optimizer().steps();
      const StepOutcome outcome = self.step(1);
      EXPECT_TRUE(outcome.is_aborted) << layout.name;
      EXPECT_EQ(self.state().stop_request().signal, 15) << layout.name;
      EXPECT_EQ(self.state().optimizer().steps(), steps_before);
      self.state().set_observer(nullptr);
    }
    for (i64 step = 1; step < run_task.steps; ++step) losses.push_back(self.step(step).loss);
    const std::lock_guard lock(mutex);
    self.collect(result.weights);
    if (rank == 0) result.losses = losses;
  });
  return result;
}

void expect_same_after_abort(const RunTask& run_task, const RunLayout& layout) {
  SCOPED_TRACE(layout.name);
  const Result whole = train(run_task, layout, -1, 0);
  const i64 passes = 2 * run_task.global_batch_size / layout.dp;  // a lower bound for each rank
  for (int signaled_rank = 0; signaled_rank < layout.ranks(); ++signaled_rank) {
    for (const i64 after : {i64{0}, i64{1}, passes / 2, passes - 1}) {
      const Result result = train(run_task, layout, signaled_rank, after);
      EXPECT_EQ(result.losses, whole.losses) << "rank " << signaled_rank << " after " << after << " passes";
      EXPECT_EQ(result.weights, whole.weights) << "rank " << signaled_rank << " after " << after << " passes";
    }
  }
}

TEST(AbortedStepTest, DoesNotAffectLaterStepsOnAnyLayout) {
  for (const RunLayout& layout : kLayouts) expect_same_after_abort(task(), layout);
}

/// A forward and a backward pass run together. Routers have state that steps update.
TEST(AbortedStepTest, DoesNotAffectLaterStepsWithOverlapOfExperts) {
  if (test::built_with_cuda()) GTEST_SKIP() << "supports CPUs only";
  RunTask experts = task();
  MoeConfig& moe = experts.model.moe;
  moe.num_experts = 4, moe.expert_capacity_factor = 1, moe.pad_expert_input_to_capacity = true;
  moe.router_score_function = RouterScore::Sigmoid, moe.router_enable_expert_bias = true;
  moe.router_load_balancing_type = LoadBalancing::GlobalAuxLoss, moe.aux_loss_coeff = 0.02;
  for (const RunLayout& layout :
       {RunLayout{"ep2", {.dp = 2, .ep = 2, .overlap_moe_expert_parallel_comm = true}},
        RunLayout{"pp2_ep2", {.tp = 2, .pp = 2, .ep = 2, .etp = 1, .overlap_moe_expert_parallel_comm = true}}})
    expect_same_after_abort(experts, layout);
}

TEST(AbortedStepTest, DoesNotAffectLaterStepsWithPredictionInItsOwnStage) {
  for (const RunLayout& layout : kPredictionStageLayouts) expect_same_after_abort(prediction_task(), layout);
}

TEST(AbortedStepTest, RunsNoFurtherPass) {
  struct PassCounter final : StepObserver {
    int signal() const override { return last >= 5 ? 15 : 0; }
    double minutes() const override { return 0; }
    void on_pass_finished(i64 done, i64 all_passes, i64 count) override {
      last = done, all = all_passes, microbatches = count;
    }
    i64 last = -1, all = 0, microbatches = 0;
  };
  const RunTask run_task = task();
  run_local_ranks(1, [&](Communicator& world, int) {
    LayoutRank self(run_task, {}, world);
    PassCounter counter;
    self.state().set_observer(&counter);
    EXPECT_TRUE(self.step(0).is_aborted);
    EXPECT_EQ(counter.last, 5) << "a pass ran after the stop";
    EXPECT_EQ(counter.all, 16);
    EXPECT_EQ(counter.microbatches, 8);
    EXPECT_TRUE(self.step(1).is_aborted) << "the signal is still there";
  });
}

TEST(LongStepTest, ReportsProgressOccasionally) {
  LongStep step;
  EXPECT_FALSE(step.reports_at(0.5, 0.1, 64).live) << "the step is not long yet";
  EXPECT_EQ(step.reports_at(10, 0.25, 64).live.value(), "microbatch 17 of 64, 30.0s left");
  EXPECT_FALSE(step.reports_at(10.1, 0.26, 64).live) << "updates too often";
  EXPECT_FALSE(step.reports_at(20, 0.5, 64).log);
  EXPECT_EQ(step.reports_at(130, 0.5, 64).log.value(), "microbatch 33 of 64 after 2m10s, 2m10s left");
  EXPECT_FALSE(step.reports_at(200, 0.6, 64).log);
  EXPECT_TRUE(step.reports_at(251, 1.0, 64).log);
  EXPECT_FALSE(LongStep().reports_at(500, 0, 64).log) << "the remaining time is not known yet";
}

}  // namespace
}  // namespace mcpp::aborted_step_test
