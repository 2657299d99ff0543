// Training with tp_comm_overlap is bitwise identical to training without it, for every kind of layer and schedule.
// Samples are long enough for several chunks.
#include <gtest/gtest.h>

#include "tests/support/layouts/compare_runs.h"
#include "tests/support/layouts/layout_run.h"
#include "tests/support/tiny_model.h"

namespace mcpp::tp_overlap_layouts_test {
namespace {

using test::RunLayout;
using test::RunResult;
using test::RunTask;

ModelConfig model_of(const std::string& name) {
  if (name == "gpt2" || name == "llama") {
    ModelConfig config = name == "gpt2" ? test::tiny_gpt2() : test::tiny_llama();
    config.num_attention_heads = 4, config.num_layers = 4;
    return config;
  }
  for (const test::NamedModel& variant : test::tiny_variants())
    if (variant.name == name) return variant.config;
  fail(ExitCode::Internal, "there is no ", name);
}

RunTask task_of(const std::string& name, DType dtype = DType::F32) {
  ModelConfig model = model_of(name);
  model.seq_length = 128;
  RunTask task = test::learnable_task(model, dtype);
  task.steps = 2;
  return task;
}

void expect_same_with_overlap(const RunTask& task, RunLayout layout) {
  SCOPED_TRACE(layout.name);
  const RunResult serial = run_layout(task, layout);
  layout.tp_comm_overlap = true;
  test::expect_same_bits(serial, run_layout(task, layout));
}

constexpr auto kZbH1 = ScheduleKind::ZbH1, kZbV = ScheduleKind::ZbV;
constexpr Recompute kFull{.granularity = Recompute::Granularity::Full, .num_layers = 2},
    kSelective{.granularity = Recompute::Granularity::Selective, .core_attn = true, .layernorm = true, .mlp_act = true};

const RunLayout kLayouts[]{
    {"tp2", {.tp = 2}},
    {"tp2_sp", {.tp = 2, .sequence_parallel = true}},
    {"tp4_sp", {.tp = 4, .sequence_parallel = true}},
    {"tp2_cp2", {.tp = 2, .cp = 2, .sequence_parallel = true}},
    {"tp2_pp2_zb_h1", {.tp = 2, .pp = 2, .schedule = kZbH1}},
    {"tp2_sp_pp2_zb_v", {.tp = 2, .pp = 2, .sequence_parallel = true, .schedule = kZbV, .chunks = 2}},
    {"tp2_sp_full", {.tp = 2, .sequence_parallel = true, .recompute = kFull}},
    {"tp2_sp_selective", {.tp = 2, .sequence_parallel = true, .recompute = kSelective}},
    {"tp2_sp_dp2_zero3", {.tp = 2, .dp = 2, .sequence_parallel = true, .zero_stage = 3}},
};

class TpOverlapLayoutsTest : public testing::TestWithParam<const char*> {};

TEST_P(TpOverlapLayoutsTest, IsBitwiseIdenticalToSerialCommunication) {
  for (const RunLayout& layout : kLayouts) expect_same_with_overlap(task_of(GetParam()), layout);
}
INSTANTIATE_TEST_SUITE_P(Models, TpOverlapLayoutsTest, testing::Values("gpt2", "llama"),
                         [](const auto& p) { return std::string(p.param); });

/// Latent attention, output gates and scans, shared groups of query heads, and multi-token prediction.
TEST(TpOverlapVariantsTest, IsBitwiseIdenticalToSerialCommunication) {
  for (const char* name : {"deepseek", "qwen3_next", "olmo2", "mtp"}) {
    SCOPED_TRACE(name);
    for (const bool sequence_parallel : {false, true})
      expect_same_with_overlap(task_of(name), {"tp4", {.tp = 4, .sequence_parallel = sequence_parallel}});
  }
}

TEST(TpOverlapPrecisionTest, IsBitwiseIdenticalToSerialCommunication) {
  for (const DType dtype : {DType::BF16, DType::F64}) {
    RunTask task = task_of("gpt2", dtype);
    task.gelu_epilogue = dtype == DType::BF16;
    expect_same_with_overlap(task, {"tp2_sp", {.tp = 2, .sequence_parallel = true}});
  }
}

}  // namespace
}  // namespace mcpp::tp_overlap_layouts_test
