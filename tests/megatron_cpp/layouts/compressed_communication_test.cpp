// Compressed communication on any layout: secondary weight shards are bitwise identical to none, and compressed weights
// and gradients stay close to uncompressed ones. Ranks are threads.
#include <gtest/gtest.h>

#include "tensor/ops/ops.h"
#include "tests/support/layouts/compare_runs.h"
#include "tests/support/layouts/resumed_run.h"
#include "tests/support/scratch_folder.h"
#include "tests/support/tiny_model.h"

namespace mcpp {
namespace {

using test::expect_same_bits;
using test::load_and_continue;
using test::Numbers;
using test::relative_distance;
using test::run_layout;
using test::RunLayout;
using test::RunResult;
using test::RunTask;
using test::save_and_continue;

ModelConfig model_of(const char* family) {
  ModelConfig model = std::string_view(family) == "llama" ? test::tiny_llama() : test::tiny_gpt2();
  model.num_layers = 4;
  model.hidden_size = 32;
  model.num_attention_heads = 4;
  model.seq_length = 8;
  return model;
}

RunTask task_of(DType dtype, const char* family = "gpt2") {
  return test::learnable_task(model_of(family), dtype);
}

RunLayout quantized(RunLayout layout, bool weights, bool gradients) {
  layout.formats.quantized_weights = weights;
  if (gradients) layout.formats.set_grad_reduce_format(GradReduceFormat::Int8);
  return layout;
}

RunLayout in_bf16(RunLayout layout) {
  layout.formats.set_grad_reduce_format(GradReduceFormat::Bf16);
  return layout;
}

TEST(SecondaryShardTest, IsBitwiseIdenticalToNoSecondaryShards) {
  const RunLayout layouts[]{
      {"dp4", {.dp = 4, .zero_stage = 3}},
      {"dp4_no_overlap", {.dp = 4, .zero_stage = 3, .overlap_grad_reduce = false, .overlap_param_gather = false}},
      {"tp2_dp4", {.tp = 2, .dp = 4, .sequence_parallel = true, .zero_stage = 3}},
      {"cp2_dp2", {.cp = 2, .dp = 2, .zero_stage = 3}},
      {"pp2_dp4", {.pp = 2, .dp = 4, .zero_stage = 3}},
      {"interleaved_dp4", {.pp = 2, .dp = 4, .schedule = ScheduleKind::Interleaved, .chunks = 2, .zero_stage = 3}},
      {"hsdp", {.dp = 8, .zero_stage = 3, .instances = 2}},
      {"recompute",
       {.dp = 4, .zero_stage = 3, .recompute = {.granularity = Recompute::Granularity::Full, .num_layers = 2}}},
  };
  for (const DType dtype : {DType::F32, DType::BF16}) {
    for (const char* family : {"gpt2", "llama"}) {
      RunTask task = task_of(dtype, family);
      task.steps = 4;
      for (RunLayout layout : layouts) {
        SCOPED_TRACE(str(family, " ", layout.name, " ", name_of(dtype)));
        const RunResult without = run_layout(task, layout);
        layout.node_ranks = 2;
        expect_same_bits(run_layout(task, layout), without);
      }
    }
  }
}

/// Experts have no secondary shards and are gathered over all ranks.
TEST(SecondaryShardTest, IsUsedForDenseLayersOfMixture) {
  RunTask task = task_of(DType::F32, "llama");
  task.steps = 4;
  task.model.moe.num_experts = 4;
  task.model.moe.router_topk = 2;
  RunLayout layout{{.dp = 4, .ep = 2, .zero_stage = 3}};
  const RunResult without = run_layout(task, layout);
  layout.node_ranks = 2;
  expect_same_bits(run_layout(task, layout), without);
}

/// No block spans two parameters, so quantized values depend neither on the number of ranks nor on the ZeRO stage.
TEST(QuantizedWeightsTest, AreIndependentOfRanksAndZeroStage) {
  for (const DType dtype : {DType::F32, DType::BF16}) {
    RunTask task = task_of(dtype);
    task.micro_batch_size = 2;
    task.global_batch_size = 4;  // one microbatch, so that gradients of all stages are bitwise identical
    const RunResult two = run_layout(task, quantized({{.dp = 2, .zero_stage = 1}}, true, false));
    for (const RunLayout& layout :
         {RunLayout{"zero2", {.dp = 2, .zero_stage = 2}},
          {"zero3", {.dp = 2, .zero_stage = 3}},
          {"zero3_no_overlap", {.dp = 2, .zero_stage = 3, .overlap_grad_reduce = false, .overlap_param_gather = false}},
          {"zero1_one_bucket", {.dp = 2, .zero_stage = 1, .bucket_size = 0}},
          {"pp2", {.pp = 2, .dp = 2, .zero_stage = 1}}}) {
      SCOPED_TRACE(layout.name);
      expect_same_bits(run_layout(task, quantized(layout, true, false)), two);
    }
    task.global_batch_size = 8, task.micro_batch_size = 1;
    const RunResult one_rank = run_layout(task, quantized({{.zero_stage = 3}}, true, false));
    const double tolerance = dtype == DType::F32 ? 1e-5 : 5e-3;
    for (const RunLayout& layout : {RunLayout{{.dp = 4, .zero_stage = 3}},
                                    {{.dp = 4, .zero_stage = 3, .instances = 2}},
                                    {{.cp = 2, .dp = 2, .zero_stage = 3}},
                                    {{.dp = 4, .zero_stage = 3, .node_ranks = 2}}})
      EXPECT_LE(relative_distance(run_layout(task, quantized(layout, true, false)).losses, one_rank.losses), tolerance);
  }
}

TEST(QuantizedGradientsTest, AreBitwiseIdenticalForAllZeroStages) {
  RunTask task = task_of(DType::BF16);
  task.micro_batch_size = 2, task.global_batch_size = 8;
  const RunResult four = run_layout(task, quantized({{.dp = 4, .zero_stage = 1}}, false, true));
  expect_same_bits(run_layout(task, quantized({{.dp = 4, .zero_stage = 2}}, false, true)), four);
  expect_same_bits(run_layout(task, quantized({{.dp = 4, .zero_stage = 3}}, false, true)), four);
  expect_same_bits(
      run_layout(task,
                 quantized({{.dp = 4, .zero_stage = 3, .overlap_grad_reduce = false, .overlap_param_gather = false}},
                           false, true)),
      four);
  const RunLayout two_level = quantized({{.dp = 4, .zero_stage = 3, .node_ranks = 2}}, false, true);
  const RunResult two_level_result = run_layout(task, two_level);
  expect_same_bits(run_layout(task, two_level), two_level_result);
  EXPECT_NE(two_level_result.grad_norms, four.grad_norms) << "the sums of nodes are quantized a second time";
  const RunResult one_rank = run_layout(task, quantized({{.zero_stage = 2}}, false, true));
  expect_same_bits(one_rank, run_layout(task, {{.zero_stage = 2}}));
}

/// One microbatch, because stages 1 and 2 sum several in different orders.
TEST(Bf16GradientReductionTest, IsBitwiseIdenticalForAllZeroStages) {
  for (const DType dtype : {DType::F32, DType::BF16}) {
    RunTask task = task_of(dtype);
    task.micro_batch_size = 2, task.global_batch_size = 8;
    const RunResult four = run_layout(task, in_bf16({{.dp = 4, .zero_stage = 1}}));
    for (const RunLayout& layout :
         {RunLayout{"one_bucket", {.dp = 4, .zero_stage = 1, .bucket_size = 0}},
          {"zero2", {.dp = 4, .zero_stage = 2}},
          {"zero3", {.dp = 4, .zero_stage = 3}},
          {"zero3_no_overlap", {.dp = 4, .zero_stage = 3, .overlap_grad_reduce = false, .overlap_param_gather = false}},
          {"pp2", {.pp = 2, .dp = 4, .zero_stage = 1}}}) {
      SCOPED_TRACE(layout.name);
      expect_same_bits(run_layout(task, in_bf16(layout)), four);
    }
    const RunLayout two_level = in_bf16({{.dp = 4, .zero_stage = 3, .node_ranks = 2}});
    const RunResult two_level_result = run_layout(task, two_level);
    expect_same_bits(run_layout(task, two_level), two_level_result);
    expect_same_bits(run_layout(task, in_bf16({{.dp = 4, .zero_stage = 1, .node_ranks = 2}})), two_level_result);
    EXPECT_NE(two_level_result.grad_norms, four.grad_norms) << "the sums of nodes are rounded a second time";
    EXPECT_NE(run_layout(task, {{.dp = 4, .zero_stage = 1}}).grad_norms, four.grad_norms);
  }
}

TEST(Bf16GradientReductionTest, HasNoEffectOnOneRank) {
  for (const DType dtype : {DType::F32, DType::BF16}) {
    const RunTask task = task_of(dtype);
    for (const int stage : {1, 2, 3})
      expect_same_bits(run_layout(task, in_bf16({{.zero_stage = stage}})), run_layout(task, {{.zero_stage = stage}}));
  }
}

/// Gradients stored in bf16 are rounded before they are sent and summed over ranks in fp32, so sending them in bf16
/// does not change results.
TEST(Bf16GradientReductionTest, HasNoEffectOnGradientsKeptInBf16) {
  RunTask task = task_of(DType::BF16);
  task.optimizer.main_grads_dtype = GradDType::Bf16;
  for (const int stage : {2, 3}) {
    const RunLayout layout{{.dp = 4, .zero_stage = stage}};
    expect_same_bits(run_layout(task, in_bf16(layout)), run_layout(task, layout));
  }
}

/// Over 40 steps, relative errors of 1/256 change losses by less than 0.2 % and weights by less than 1 %.
TEST(Bf16GradientReductionTest, StaysCloseToFp32Reduction) {
  constexpr double kLosses = 0.002, kWeights = 0.01;
  for (const DType dtype : {DType::F32, DType::BF16}) {
    RunTask task = task_of(dtype);
    task.steps = 40;
    for (const RunLayout& layout : {RunLayout{"zero1", {.dp = 4, .zero_stage = 1}},
                                    {"zero3", {.dp = 4, .zero_stage = 3}},
                                    {"nodes", {.dp = 4, .zero_stage = 2, .node_ranks = 2}},
                                    {"hsdp", {.dp = 4, .zero_stage = 3, .instances = 2}},
                                    {"cp2", {.cp = 2, .dp = 2, .zero_stage = 1}},
                                    {"tp2", {.tp = 2, .dp = 2, .zero_stage = 2}}}) {
      SCOPED_TRACE(str(layout.name, " ", name_of(dtype)));
      RunLayout plain = layout;
      plain.node_ranks = 1;
      const RunResult full = run_layout(task, plain), result = run_layout(task, in_bf16(layout));
      EXPECT_LE(relative_distance(result.losses, full.losses), kLosses);
      EXPECT_LE(relative_distance(test::all_weights(result, task.model), test::all_weights(full, task.model)),
                kWeights);
      EXPECT_NE(result.losses, full.losses);
    }
  }
}

/// Over 40 steps, losses are within 2 % and weights within 5 %.
TEST(QuantizedTrainingTest, StaysCloseToFullPrecision) {
  constexpr double kLosses = 0.02, kWeights = 0.05;
  for (const DType dtype : {DType::F32, DType::BF16}) {
    RunTask task = task_of(dtype);
    task.steps = 40;
    const RunResult full = run_layout(task, {{.dp = 4, .zero_stage = 3}});
    EXPECT_LT(full.losses.back(), 0.7 * full.losses.front()) << "nothing is learned";
    for (const RunLayout& layout : {RunLayout{"zero1", {.dp = 4, .zero_stage = 1}},
                                    {"zero3", {.dp = 4, .zero_stage = 3}},
                                    {"nodes", {.dp = 4, .zero_stage = 3, .node_ranks = 2}},
                                    {"tp2", {.tp = 2, .dp = 2, .zero_stage = 2}}}) {
      for (const auto& [weights, gradients] : {std::pair(true, false), {false, true}, {true, true}}) {
        SCOPED_TRACE(str(layout.name, " ", name_of(dtype), weights ? " weights" : "", gradients ? " gradients" : ""));
        const RunResult result = run_layout(task, quantized(layout, weights, gradients));
        EXPECT_LE(relative_distance(result.losses, full.losses), kLosses);
        EXPECT_LE(relative_distance(test::all_weights(result, task.model), test::all_weights(full, task.model)),
                  kWeights);
        EXPECT_NE(result.losses, full.losses);
      }
    }
  }
}

/// Checkpoints hold uncompressed weights: the same layout continues bitwise identically, any other one closely.
TEST(QuantizedTrainingTest, ContinuesFromCheckpoint) {
  const test::ScratchFolder scratch;
  for (const DType dtype : {DType::F32, DType::BF16}) {
    const RunTask task = task_of(dtype);
    for (const RunLayout& layout : {quantized({"zero1", {.dp = 2, .zero_stage = 1}}, true, true),
                                    quantized({"nodes", {.dp = 4, .zero_stage = 3, .node_ranks = 2}}, true, true),
                                    in_bf16({"bf16", {.dp = 4, .zero_stage = 2}}),
                                    in_bf16({"bf16_nodes", {.dp = 4, .zero_stage = 1, .node_ranks = 2}})}) {
      SCOPED_TRACE(str(layout.name, " ", name_of(dtype)));
      const Path folder = scratch / str(layout.name, name_of(dtype));
      const Numbers losses = save_and_continue(task, layout, folder);
      EXPECT_EQ(load_and_continue(task, layout, folder), losses);
      EXPECT_LE(relative_distance(load_and_continue(task, {{.tp = 2, .pp = 2}}, folder), losses), 0.01);
      EXPECT_LE(
          relative_distance(
              load_and_continue(task, quantized({{.tp = 2, .dp = 2, .zero_stage = 3}}, true, true), folder), losses),
          0.01);
    }
  }
}

/// ZeRO 0 and 1 and all options of this test have the same order of summation.
TEST(PowerSgdLayoutsTest, AreBitwiseIdenticalToOneAnother) {
  for (const DType dtype : {DType::F32, DType::BF16}) {
    const RunTask task = task_of(dtype);
    const RunResult two = run_layout(task, {{.dp = 2, .formats = {.power_sgd_rank = 2}}});
    for (const RunLayout& layout :
         {RunLayout{"zero1", {.dp = 2, .zero_stage = 1}},
          {"no_overlap", {.dp = 2, .overlap_grad_reduce = false, .overlap_param_gather = false}},
          {"one_bucket", {.dp = 2, .zero_stage = 1, .bucket_size = 0}},
          {"recompute", {.dp = 2, .recompute = {.granularity = Recompute::Granularity::Full, .num_layers = 2}}}}) {
      SCOPED_TRACE(layout.name);
      RunLayout with_power_sgd = layout;
      with_power_sgd.formats.power_sgd_rank = 2;
      expect_same_bits(run_layout(task, with_power_sgd), two);
    }
    expect_same_bits(run_layout(task, {{.formats = {.power_sgd_rank = 2}}}), run_layout(task, {}));
  }
}

/// Over 40 steps, losses are within 10 % with factors of rank 4 for matrices of size 32 to 128.
TEST(PowerSgdLayoutsTest, StayCloseToFullReduction) {
  RunTask task = task_of(DType::BF16);
  task.steps = 40;
  for (const RunLayout& layout : {RunLayout{"dp4", {.dp = 4}},
                                  {"tp2_pp2", {.tp = 2, .pp = 2, .dp = 2, .zero_stage = 1}},
                                  {"hsdp", {.dp = 4, .zero_stage = 1, .instances = 2}},
                                  {"cp2", {.cp = 2, .dp = 2}}}) {
    SCOPED_TRACE(layout.name);
    RunLayout with_power_sgd = layout;
    with_power_sgd.formats.power_sgd_rank = 4;
    const RunResult full = run_layout(task, layout), result = run_layout(task, with_power_sgd);
    EXPECT_LE(relative_distance(result.losses, full.losses), 0.1);
    EXPECT_LT(result.losses.back(), 0.8 * result.losses.front());
    EXPECT_NE(result.losses, full.losses);
  }
}

TEST(PowerSgdLayoutsTest, ContinueBitwiseIdentically) {
  const test::ScratchFolder scratch;
  for (const DType dtype : {DType::F32, DType::BF16}) {
    const RunTask task = task_of(dtype);
    for (const RunLayout& layout :
         {RunLayout{"dp2", {.dp = 2, .formats = {.power_sgd_rank = 2}}},
          {"tp2_dp2", {.tp = 2, .dp = 2, .zero_stage = 1, .formats = {.power_sgd_rank = 2}}},
          {"hsdp", {.dp = 4, .zero_stage = 1, .instances = 2, .formats = {.power_sgd_rank = 2}}}}) {
      SCOPED_TRACE(str(layout.name, " ", name_of(dtype)));
      const Path folder = scratch / str(layout.name, name_of(dtype));
      const Numbers losses = save_and_continue(task, layout, folder);
      EXPECT_EQ(load_and_continue(task, layout, folder), losses);
    }
  }
}

/// Tensor-parallel ranks have partial gradients of shared keys and values, and of latents' projections.
TEST(PowerSgdLayoutsTest, ContinueBitwiseIdenticallyWithReplicatedWeights) {
  const test::ScratchFolder scratch;
  RunTask multi_query = task_of(DType::F32, "llama"), latent = multi_query;
  multi_query.model.num_query_groups = 1;
  latent.model.num_query_groups = 0;
  latent.model.mla = {.is_used = true,
                      .kv_lora_rank = 24,
                      .qk_head_dim = 8,
                      .qk_pos_emb_head_dim = 4,
                      .v_head_dim = 8,
                      .latent_norm_epsilon = 0};
  for (const RunTask& task : {multi_query, latent}) {
    for (const RunLayout& layout :
         {RunLayout{"tp2_dp2", {.tp = 2, .dp = 2, .formats = {.power_sgd_rank = 2}}},
          {"tp2_sp_dp2",
           {.tp = 2, .dp = 2, .sequence_parallel = true, .zero_stage = 1, .formats = {.power_sgd_rank = 2}}}}) {
      const bool is_latent = task.model.mla.is_used;
      SCOPED_TRACE(str(layout.name, is_latent ? " with latents" : " with one query group"));
      const Path folder = scratch / str(layout.name, is_latent);
      const Numbers losses = save_and_continue(task, layout, folder);
      EXPECT_EQ(load_and_continue(task, layout, folder), losses);
    }
  }
}

/// Returns the sum over ranks of their error feedback, by parameter.
std::map<std::string, Numbers> summed_errors(test::LayoutRank& self, Communicator& world) {
  std::map<std::string, Numbers> sums;
  for (const ParamAndGradBuffer* buffer : self.state().buffers()) {
    for (const PowerSgdState& state : buffer->power_sgd_states()) {
      Tensor sum = Tensor::like(state.error);
      ops::copy(state.error, sum);
      world.all_reduce(sum, ReduceOp::Sum).wait();
      sums[state.param->name] = test::to_doubles(sum);
    }
  }
  return sums;
}

/// Other numbers of ranks redistribute the error feedback; without data parallelism it is zero.
TEST(PowerSgdLayoutsTest, KeepErrorFeedbackOnOtherRanks) {
  const test::ScratchFolder scratch;
  const RunTask task = task_of(DType::F32);
  std::map<std::string, Numbers> saved;
  run_local_ranks(4, [&](Communicator& world, int rank) {
    test::LayoutRank self(task, {{.dp = 4, .formats = {.power_sgd_rank = 2}}}, world);
    for (i64 step = 0; step < 2; ++step) self.step(step);
    HostCopies source(shards_to_save(self.state()));
    save_checkpoint(scratch / "four", {.iteration = 2}, source, world, Log(rank));
    const auto sums = summed_errors(self, world);
    if (rank == 0) saved = sums;
  });
  for (const i64 dp : {1, 2, 3, 8}) {
    run_local_ranks(static_cast<int>(dp), [&](Communicator& world, int) {
      RunTask other = task;
      other.global_batch_size = 24;
      test::LayoutRank self(other, {{.dp = dp, .zero_stage = 1, .formats = {.power_sgd_rank = 2}}}, world);
      self.step(7);
      EXPECT_FALSE(test::load(self, scratch / "four", world).has_value());
      const auto sums = summed_errors(self, world);
      EXPECT_EQ(sums.size(), saved.size());
      for (const auto& [name, errors] : sums)
        EXPECT_LE(relative_distance(errors, saved.at(name)), 1e-5) << name << " on " << dp;
    });
  }
  save_and_continue(task, {{.dp = 2}}, scratch / "in_full");
  run_local_ranks(2, [&](Communicator& world, int) {
    test::LayoutRank self(task, {{.dp = 2, .formats = {.power_sgd_rank = 2}}}, world);
    self.step(7);
    EXPECT_FALSE(test::load(self, scratch / "in_full", world).has_value());
    for (const auto& [name, errors] : summed_errors(self, world))
      EXPECT_EQ(errors, Numbers(errors.size(), 0.0)) << name;
  });
  load_and_continue(task, {{.tp = 2}}, scratch / "four");
}

}  // namespace
}  // namespace mcpp
