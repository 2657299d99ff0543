// Parameter groups on any layout: bitwise identical to the reference layout, and different from a run without groups.
// Ranks are threads.
#include <gtest/gtest.h>

#include "tests/support/disk_folder.h"
#include "tests/support/layouts/compare_runs.h"
#include "tests/support/tiny_model.h"

namespace mcpp::param_group_layouts_test {
namespace {

using test::expect_same_bits;
using test::run_layout;
using test::RunLayout;
using test::RunResult;
using test::RunTask;

RunTask make_task(OptimizerKind optimizer) {
  ModelConfig model = test::tiny_gpt2();
  model.num_layers = 4;
  model.num_attention_heads = 4;
  model.seq_length = 8;
  RunTask task = test::learnable_task(model);
  task.steps = 6;
  task.optimizer.optimizer = optimizer;
  task.optimizer.param_group = {
      {.match = OneOrList<std::string>("embedding.*"), .lr_mult = 0.5, .wd_mult = 0, .adam_beta2 = 0.9},
      {.match = OneOrList<std::string>("decoder.layers.2.*"), .lr_mult = 0.25},
      {.match = OneOrList(std::vector<std::string>{"*.bias", "*layernorm*"}), .wd_mult = 1, .adam_eps = 1e-4},
      {.match = OneOrList<std::string>("*.linear_fc?.weight"), .lr_mult = 2, .wd_mult = 3}};
  return task;
}

class ParamGroupLayoutsTest : public testing::TestWithParam<OptimizerKind> {};
INSTANTIATE_TEST_SUITE_P(Optimizers, ParamGroupLayoutsTest,
                         testing::Values(OptimizerKind::Adam, OptimizerKind::Sgd, OptimizerKind::Muon),
                         [](const auto& p) { return std::string(enum_name(p.param)); });

TEST_P(ParamGroupLayoutsTest, AreBitwiseIdenticalToReference) {
  RunTask task = make_task(GetParam());
  if (GetParam() == OptimizerKind::Sgd)
    for (ParamGroupConfig& group : task.optimizer.param_group) group.adam_beta2.reset(), group.adam_eps.reset();
  const RunResult one_rank = run_layout(task, {});
  expect_same_bits(run_layout(task, {"pp2", {.pp = 2}}), one_rank);
  expect_same_bits(run_layout(task, {"pp2_zb_v", {.pp = 2, .schedule = ScheduleKind::ZbV, .chunks = 2}}), one_rank);
  RunTask offloaded = task;
  const test::DiskFolder folder;
  offloaded.optimizer.offload = OffloadTier::File;
  offloaded.optimizer.offload_folder = folder.path().string();
  offloaded.optimizer.offload_segment_size = 700;  // not aligned to the ends of parameters
  expect_same_bits(run_layout(offloaded, {}), one_rank);
  const RunResult dp2 = run_layout(task, {"dp2", {.dp = 2}});
  expect_same_bits(run_layout(task, {"dp2_zero1", {.dp = 2, .zero_stage = 1}}), dp2);
  expect_same_bits(run_layout(task, {"dp2_zero3", {.dp = 2, .zero_stage = 3}}),
                   run_layout(task, {"dp2_zero2", {.dp = 2, .zero_stage = 2}}));
  const RunResult tp2 = run_layout(task, {"tp2", {.tp = 2}});
  expect_same_bits(run_layout(task, {"tp2_pp2", {.tp = 2, .pp = 2}}), tp2);
  test::expect_near(tp2, one_rank, 1e-5, 1e-4, task.model);
}

TEST_P(ParamGroupLayoutsTest, FreezesLayerWithoutLearningRate) {
  RunTask task = make_task(GetParam());
  task.optimizer.param_group = {{.match = OneOrList<std::string>("decoder.layers.2.*"), .lr_mult = 0}};
  const RunLayout layout{"dp2_zero1", {.dp = 2, .zero_stage = 1}};
  const RunResult trained = run_layout(task, layout);
  task.steps = 1;
  const RunResult early = run_layout(task, layout);
  for (const auto& [name, values] : early.weights)
    EXPECT_EQ(trained.weights.at(name) == values, name.starts_with("decoder.layers.2.")) << name;
}

}  // namespace
}  // namespace mcpp::param_group_layouts_test
