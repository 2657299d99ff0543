// Weights sent in fp8 train bitwise like weights sent in bf16, in fewer bytes.
#include <gtest/gtest.h>

#include "megatron_cpp/setup/run_summary.h"
#include "tests/support/layouts/compare_runs.h"
#include "tests/support/layouts/layout_run.h"
#include "tests/support/tiny_model.h"

namespace mcpp::fp8_param_gather_test {
namespace {

using test::expect_same_bits;
using test::LayoutRank;
using test::RunLayout;
using test::RunTask;

/// Returns a model with a scale per weight, whose weights and shards have no round sizes.
RunTask tensorwise_task() {
  ModelConfig model = test::tiny_llama();
  model.num_layers = 4;
  model.num_attention_heads = 4;
  model.seq_length = 8;
  model.ffn_hidden_size = 36;
  model.untie_embeddings_and_output_weights = true;
  if (test::runs_on_gpus()) {  // where all sizes of a rank's GEMMs must be multiples of 16
    model.hidden_size = model.seq_length = model.vocab_size = 64;
    model.ffn_hidden_size = 128;
  }
  RunTask task = test::learnable_task(model, DType::BF16);
  task.fp8 = Fp8::Hybrid;
  task.low_precision = {{.modules = OneOrList<std::string>("output_layer"), .recipe = GemmRecipe::Tensorwise},
                        {.modules = OneOrList<std::string>("*layers.1.mlp*"), .recipe = GemmRecipe::Bf16}};
  task.steps = 4;
  return task;
}

/// Returns a model with experts and incomplete blocks.
RunTask blockwise_task() {
  ModelConfig model = test::tiny_llama();
  model.num_layers = 2;
  model.hidden_size = 192;
  model.num_attention_heads = 4;
  model.ffn_hidden_size = 128;
  model.seq_length = 32;
  model.moe.num_experts = 4;
  model.moe.router_topk = 2;
  model.moe.layer_freq = {2};
  RunTask task = test::learnable_task(model, DType::BF16);
  task.micro_batch_size = 4;
  task.global_batch_size = 16;
  task.low_precision = {{.modules = OneOrList<std::string>("*.experts.*"),
                         .recipe = GemmRecipe::Blockwise,
                         .wgrad = PassRecipeName::Bf16},
                        {.modules = OneOrList<std::string>("decoder.*"), .recipe = GemmRecipe::Blockwise}};
  task.steps = 2;
  return task;
}

const RunLayout kLayouts[]{
    {"dp2_zero1", {.dp = 2, .zero_stage = 1}},
    {"dp3_zero2", {.dp = 3, .zero_stage = 2}},
    {"dp4_zero3", {.dp = 4, .zero_stage = 3}},
    {"dp4_zero3_recompute", {.dp = 4, .zero_stage = 3, .recompute = {.granularity = Recompute::Granularity::Full}}},
    {"dp4_zero3_node_copies", {.dp = 4, .zero_stage = 3, .node_ranks = 2}},
    {"dp4_zero1_two_instances", {.dp = 4, .zero_stage = 1, .instances = 2}},
    {"dp2_zero3_offload", {.dp = 2, .zero_stage = 3, .params_tier = OffloadTier::Host}},
    {"cp2_dp2_zero3", {.cp = 2, .dp = 2, .zero_stage = 3}},
    {"pp2_dp2_zero3", {.pp = 2, .dp = 2, .zero_stage = 3}},
    {"tp2_sp_dp2_zero3", {.tp = 2, .dp = 2, .sequence_parallel = true, .zero_stage = 3}},
    {"tp4_shared_groups_dp2_zero1", {.tp = 4, .dp = 2, .zero_stage = 1}},
};

RunLayout sent_in_fp8(RunLayout layout) {
  layout.formats.fp8_param_gather = true;
  return layout;
}

class Fp8ParamGatherTest : public testing::TestWithParam<RunLayout> {};
INSTANTIATE_TEST_SUITE_P(Layouts, Fp8ParamGatherTest, testing::ValuesIn(kLayouts),
                         [](const auto& p) { return p.param.name; });

TEST_P(Fp8ParamGatherTest, IsBitwiseIdenticalWithScalesOfTensors) {
  RunTask task = tensorwise_task();
  if (GetParam().dp == 3) task.global_batch_size = 3 * task.micro_batch_size;
  expect_same_bits(run_layout(task, sent_in_fp8(GetParam())), run_layout(task, GetParam()));
}

TEST_P(Fp8ParamGatherTest, IsBitwiseIdenticalWithBlocks) {
  if (GetParam().tp > 1) GTEST_SKIP() << "blocks would straddle ranks";
  RunTask task = blockwise_task();
  if (GetParam().dp == 3) task.global_batch_size = 3 * task.micro_batch_size;
  RunLayout layout = GetParam();
  if (layout.zero_stage == 3 && layout.dp == 4) layout.ep = 2;
  expect_same_bits(run_layout(task, sent_in_fp8(layout)), run_layout(task, layout));
}

/// The copy of tied embeddings in the last stage is also a table in which multi-token prediction looks up tokens.
TEST(Fp8ParamGatherTiedTest, IsBitwiseIdenticalWhenTiedOutputEmbedsTokens) {
  RunTask task = tensorwise_task();
  task.model.untie_embeddings_and_output_weights = false;
  for (const i64 mtp_layers : {0, 1})
    for (const i64 stage : {1, 3}) {
      task.model.mtp_num_layers = mtp_layers;
      const RunLayout layout{{.pp = 2, .dp = 2, .zero_stage = stage}};
      expect_same_bits(run_layout(task, sent_in_fp8(layout)), run_layout(task, layout));
    }
}

/// The estimate is an upper bound, because it counts messages as if all weights were sent in bf16.
TEST(Fp8ParamGatherMemoryTest, EstimateBoundsPeak) {
  const RunTask task = tensorwise_task();
  for (const i64 stage : {1, 3}) {
    const RunLayout layout = sent_in_fp8({{.dp = 2, .zero_stage = stage}});
    const MemoryEstimate plan = estimate_memory_by_stage(config_of(task, layout), layout.ranks())[0];
    run_local_ranks(layout.ranks(), [&](Communicator& world, int rank) {
      LayoutRank self(task, layout, world);
      self.step(0);
      self.device().reset_peak();
      self.step(1);
      const auto peak =
          static_cast<double>(self.device().memory().by_class[static_cast<std::size_t>(MemoryClass::Params)].peak);
      if (rank > 0) return;
      EXPECT_LE(peak, plan.params + 3 * 1024) << "stage " << stage << "; scales are not counted";
      EXPECT_GE(peak, 0.5 * plan.params) << "stage " << stage;
    });
  }
}

/// Returns the bytes of gathered weights that a rank sends in one step.
i64 gathered_bytes(const RunTask& task, const RunLayout& layout) {
  i64 bytes = 0;
  run_local_ranks(layout.ranks(), [&](Communicator& world, int rank) {
    LayoutRank self(task, layout, world);
    self.step(0);
    for (const auto& [name, meter] : self.parallel().meters) meter->reset();
    self.step(1);
    if (rank == 0) bytes = (*self.parallel().meters.at("dp_shard"))[CommOp::AllGather].bytes;
  });
  return bytes;
}

/// Most weights are in layers with fp8, in which 64 of them need 68 bytes instead of 128.
TEST(Fp8ParamGatherTrafficTest, HalvesBytesOfWeights) {
  RunTask task = tensorwise_task();
  task.low_precision.clear();
  task.model.hidden_size = 64;
  task.model.ffn_hidden_size = 256;
  task.model.vocab_size = 16;
  for (const i64 stage : {1, 3}) {
    const RunLayout layout{{.dp = 4, .zero_stage = stage}};
    const double ratio = static_cast<double>(gathered_bytes(task, sent_in_fp8(layout))) /
                         static_cast<double>(gathered_bytes(task, layout));
    EXPECT_GT(ratio, 68.0 / 128);
    EXPECT_LT(ratio, 0.58) << "stage " << stage;
  }
}

/// A weight with a NaN turns its layer into NaN on all ranks, so that the step is skipped.
TEST(Fp8ParamGatherFaultTest, NonFiniteWeightSkipsStep) {
  const RunTask task = tensorwise_task();
  const RunLayout layout = sent_in_fp8({{.dp = 2, .zero_stage = 3}});
  auto weights = run_layout(task, layout).weights;
  weights.at("decoder.layers.0.mlp.linear_fc1.weight")[7] = std::nan("");
  RunTask broken = task;
  broken.initial = &weights;
  run_local_ranks(layout.ranks(), [&](Communicator& ranks, int) {
    LayoutRank rank(broken, layout, ranks);
    const StepOutcome outcome = rank.step(0);
    EXPECT_TRUE(outcome.is_skipped);
    EXPECT_FALSE(std::isfinite(outcome.loss));
  });
}

}  // namespace
}  // namespace mcpp::fp8_param_gather_test
