// Averaged weights on layouts: independent of the layout where the weights are, evaluated like a model that has them as
// weights, without effect on training.
#include <gtest/gtest.h>

#include "tests/support/disk_folder.h"
#include "tests/support/layouts/compare_runs.h"
#include "tests/support/layouts/state_layouts.h"
#include "tests/support/tiny_model.h"

namespace mcpp::ema_layouts_test {
namespace {

using test::LayoutRank;
using test::Numbers;
using test::RunLayout;
using test::RunResult;
using test::RunTask;

RunTask task_of(DType dtype, double decay = 0.5) {
  ModelConfig model = test::tiny_llama();
  model.num_layers = 4;
  model.seq_length = 8;
  RunTask task = test::learnable_task(model, dtype);
  task.steps = 4;
  task.optimizer.ema_decay = decay;
  return task;
}

TEST(EmaLayoutsTest, IsBitwiseIdenticalWhereWeightsAre) {
  for (const DType dtype : {DType::F32, DType::BF16}) {
    const RunTask task = task_of(dtype);
    const RunResult one = test::run_layout(task, {}), dp2 = test::run_layout(task, {{.dp = 2}});
    ASSERT_EQ(one.averages.size(), one.weights.size());
    EXPECT_NE(one.averages, one.weights);
    for (const RunLayout& layout :
         {RunLayout{"pp4", {.pp = 4}}, {"pp2_zb_v", {.pp = 2, .schedule = ScheduleKind::ZbV, .chunks = 2}}}) {
      SCOPED_TRACE(layout.name);
      test::expect_same_bits(test::run_layout(task, layout), one);
    }
    test::expect_same_bits(test::run_layout(task, {{.dp = 2, .zero_stage = 1}}), dp2);
    test::expect_same_bits(test::run_layout(task, {{.dp = 2, .zero_stage = 1, .bucket_size = 0}}), dp2);
  }
}

TEST(EmaLayoutsTest, IsCloseToOneRankOnEveryLayout) {
  const RunTask task = task_of(DType::F32);
  const RunResult one = test::run_layout(task, {});
  for (const RunLayout& layout : test::kStateLayouts) {
    SCOPED_TRACE(layout.name);
    const RunResult result = test::run_layout(task, layout);
    for (const auto& [name, values] : one.averages)
      EXPECT_LE(test::relative_distance(result.averages.at(name), values), 1e-4) << name;
  }
}

/// Losses of two steps and of an evaluation of the averaged weights between them.
struct Losses {
  Numbers training;
  double evaluation = 0;
};

Losses evaluate_between_steps(const RunTask& task, const RunLayout& layout, bool evaluates) {
  Losses losses;
  run_local_ranks(layout.ranks(), [&](Communicator& world, int rank) {
    LayoutRank self(task, layout, world);
    Losses rank_losses;
    for (i64 step = 0; step < 3; ++step) rank_losses.training.push_back(self.step(step).loss);
    if (evaluates) {
      self.state().swap_ema();
      rank_losses.evaluation = self.evaluate(task, 7).loss;
      self.state().swap_ema();
    }
    for (i64 step = 3; step < 5; ++step) rank_losses.training.push_back(self.step(step).loss);
    if (rank == 0) losses = rank_losses;
  });
  return losses;
}

/// Returns the loss of a model on one rank that has the averages of three steps as weights.
double loss_of_averages(const RunTask& task) {
  RunTask three = task;
  three.steps = 3;
  const RunResult trained = test::run_layout(three, {});
  RunTask averaged = task;
  averaged.initial = &trained.averages;
  double loss = 0;
  run_local_ranks(1, [&](Communicator& world, int) {
    LayoutRank self(averaged, {}, world);
    loss = self.evaluate(averaged, 7).loss;
  });
  return loss;
}

TEST(EmaLayoutsTest, EvaluatesAverageAndLeavesTrainingUnchanged) {
  const test::DiskFolder folder;
  const RunLayout layouts[]{{"one_rank", {}},
                            {"dp2_zero1", {.dp = 2, .zero_stage = 1}},
                            {"dp2_zero2", {.dp = 2, .zero_stage = 2}},
                            {"dp4_hsdp_zero3", {.dp = 4, .zero_stage = 3, .instances = 2}},
                            {"tp2_sp_pp2", {.tp = 2, .pp = 2, .sequence_parallel = true}},
                            {"cp2_dp2_zero3", {.cp = 2, .dp = 2, .zero_stage = 3}}};
  for (const DType dtype : {DType::F32, DType::BF16}) {
    const RunTask task = task_of(dtype);
    const double expected = loss_of_averages(task);
    EXPECT_EQ(evaluate_between_steps(task, layouts[0], true).evaluation, expected);
    for (const RunLayout& layout : layouts) {
      RunTask offloaded = task;
      offloaded.optimizer.offload = OffloadTier::File;
      offloaded.optimizer.offload_folder = folder.path().string();
      offloaded.optimizer.offload_segment_size = 1000;
      offloaded.optimizer.store_param_remainders = dtype == DType::BF16;
      if (layout.zero_stage == 3) offloaded.optimizer.offload_params = OffloadTier::Host;
      SCOPED_TRACE(str(layout.name, " ", name_of(dtype)));
      const Losses without = evaluate_between_steps(task_of(dtype, 0), layout, false);
      const Losses resident = evaluate_between_steps(task, layout, true),
                   moved = evaluate_between_steps(offloaded, layout, true);
      EXPECT_EQ(resident.training, without.training);
      EXPECT_EQ(moved.training, without.training);
      EXPECT_EQ(moved.evaluation, resident.evaluation);
      EXPECT_NEAR(resident.evaluation, expected, dtype == DType::F32 ? 1e-5 : 2e-3);
    }
  }
}

}  // namespace
}  // namespace mcpp::ema_layouts_test
