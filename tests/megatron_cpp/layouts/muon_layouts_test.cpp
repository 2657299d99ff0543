// Settings of Muon that split weights into matrices do not depend on the layout, not even if ranks share a query group.
#include <gtest/gtest.h>

#include "tests/support/layouts/compare_runs.h"
#include "tests/support/layouts/layout_run.h"
#include "tests/support/tiny_model.h"

namespace mcpp::muon_layouts_test {
namespace {

using test::RunLayout;
using test::RunResult;
using test::RunTask;

enum class Splits { Fused, Projections, Heads };

RunTask task_of(ModelConfig model, Splits splits, MuonCoefficientType coefficients) {
  model.num_layers = 4;
  model.seq_length = 8;
  RunTask task = test::learnable_task(model, DType::F32);
  task.optimizer.optimizer = OptimizerKind::Muon;
  task.optimizer.muon_split_qkv = splits != Splits::Fused;
  task.optimizer.muon_split_heads = splits == Splits::Heads;
  task.optimizer.muon_coefficient_type = coefficients;
  return task;
}

ModelConfig deepseek() {
  for (const test::NamedModel& variant : test::tiny_variants())
    if (std::string_view(variant.name) == "deepseek") return variant.config;
  fail(ExitCode::Internal, "there is no deepseek");
}

void expect_same_on_every_layout(const RunTask& task) {
  const RunResult one_rank = run_layout(task, {});
  test::expect_learned(one_rank, task);
  test::expect_same_bits(run_layout(task, {{.pp = 2}}), one_rank);
  for (const RunLayout& layout :
       {RunLayout{"tp2", {.tp = 2}}, RunLayout{"tp4_sp", {.tp = 4, .sequence_parallel = true}},
        RunLayout{"tp4_dp2_zero1", {.tp = 4, .dp = 2, .zero_stage = 1}},
        RunLayout{"tp2_pp2_dp2_zero3", {.tp = 2, .pp = 2, .dp = 2, .zero_stage = 3}}}) {
    SCOPED_TRACE(layout.name);
    test::expect_near(run_layout(task, layout), one_rank, 1e-5, 1e-4, task.model);
  }
}

TEST(MuonLayoutsTest, FusedWeightIsOneMatrix) {
  expect_same_on_every_layout(task_of(test::tiny_llama(), Splits::Fused, MuonCoefficientType::Simple));
}

TEST(MuonLayoutsTest, EachHeadIsMatrix) {
  expect_same_on_every_layout(task_of(test::tiny_llama(), Splits::Heads, MuonCoefficientType::Simple));
}

TEST(MuonLayoutsTest, EachHeadOfLatentAttentionIsMatrix) {
  expect_same_on_every_layout(task_of(deepseek(), Splits::Heads, MuonCoefficientType::Quintic));
}

TEST(MuonLayoutsTest, CoefficientsMayDifferByIteration) {
  expect_same_on_every_layout(task_of(test::tiny_llama(), Splits::Projections, MuonCoefficientType::PolarExpress));
}

TEST(MuonLayoutsTest, EverySettingChangesTraining) {
  std::vector<RunResult> results;
  for (const Splits splits : {Splits::Projections, Splits::Fused, Splits::Heads})
    results.push_back(run_layout(task_of(test::tiny_llama(), splits, MuonCoefficientType::Simple), {}));
  results.push_back(
      run_layout(task_of(test::tiny_llama(), Splits::Projections, MuonCoefficientType::PolarExpress), {}));
  for (std::size_t a = 0; a < results.size(); ++a)
    for (std::size_t b = 0; b < a; ++b) EXPECT_NE(results[a].losses.back(), results[b].losses.back()) << a << " " << b;
}

}  // namespace
}  // namespace mcpp::muon_layouts_test
