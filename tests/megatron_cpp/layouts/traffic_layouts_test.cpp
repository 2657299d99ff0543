// Less traffic on any layout: a second copy of the weights changes no bit, weights and gradients in fewer bytes stay
// near those in full, and depend on no more than they say. Ranks as threads.
#include <gtest/gtest.h>

#include "tensor/ops/ops.h"
#include "tests/support/layouts/compare_runs.h"
#include "tests/support/layouts/resumed_run.h"
#include "tests/support/scratch_folder.h"
#include "tests/support/tiny_model.h"

namespace mcpp {
namespace {

using test::expect_same_bits;
using test::load_and_go_on;
using test::Numbers;
using test::relative_distance;
using test::run_layout;
using test::RunLayout;
using test::RunResult;
using test::RunTask;
using test::save_and_go_on;

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

RunLayout packed(RunLayout layout, bool weights, bool gradients) {
  layout.quantized_weights = weights;
  if (gradients) layout.grad_reduce_format = GradReduceFormat::Int8;
  return layout;
}

RunLayout in_bf16(RunLayout layout) {
  layout.grad_reduce_format = GradReduceFormat::Bf16;
  return layout;
}

TEST(SecondCopy, ChangesNoBit) {
  const RunLayout layouts[]{
      {.name = "dp4", .dp = 4, .zero_stage = 3},
      {.name = "dp4_no_overlap", .dp = 4, .zero_stage = 3, .overlaps = false},
      {.name = "tp2_dp4", .tp = 2, .dp = 4, .sequence_parallel = true, .zero_stage = 3},
      {.name = "cp2_dp2", .dp = 2, .cp = 2, .zero_stage = 3},
      {.name = "pp2_dp4", .pp = 2, .dp = 4, .zero_stage = 3},
      {.name = "interleaved_dp4",
       .pp = 2,
       .dp = 4,
       .schedule = ScheduleKind::Interleaved,
       .virtual_stages = 2,
       .zero_stage = 3},
      {.name = "hsdp", .dp = 8, .zero_stage = 3, .instances = 2},
      {.name = "recompute",
       .dp = 4,
       .zero_stage = 3,
       .recompute = {.granularity = Recompute::Granularity::Full, .num_layers = 2}},
  };
  for (const DType dtype : {DType::F32, DType::BF16}) {
    for (const char* family : {"gpt2", "llama"}) {
      RunTask task = task_of(dtype, family);
      task.steps = 4;
      for (RunLayout layout : layouts) {
        SCOPED_TRACE(str(family, " ", layout.name, " ", name_of(dtype)));
        const RunResult without = run_layout(task, layout);
        layout.hpz = 2;
        expect_same_bits(run_layout(task, layout), without);
      }
    }
  }
}

/// Those of experts have none, and are gathered as ever.
TEST(SecondCopy, IsOfTheDenseLayersOfAMixture) {
  RunTask task = task_of(DType::F32, "llama");
  task.steps = 4;
  task.model.moe.num_experts = 4;
  task.model.moe.router_topk = 2;
  RunLayout layout{.dp = 4, .ep = 2, .zero_stage = 3};
  const RunResult without = run_layout(task, layout);
  layout.hpz = 2;
  expect_same_bits(run_layout(task, layout), without);
}

/// What travels is each parameter's own blocks: their values depend neither on ranks nor on the stage, and a rank alone
/// computes with the same.
TEST(QuantizedWeights, DoNotDependOnWhoShares) {
  for (const DType dtype : {DType::F32, DType::BF16}) {
    RunTask task = task_of(dtype);
    task.micro_batch_size = 2;
    task.global_batch_size = 4;  // one microbatch: then gradients of all stages have the same bits
    const RunResult two = run_layout(task, packed({.dp = 2, .zero_stage = 1}, true, false));
    for (const RunLayout& layout : {RunLayout{.name = "zero2", .dp = 2, .zero_stage = 2},
                                    {.name = "zero3", .dp = 2, .zero_stage = 3},
                                    {.name = "zero3_no_overlap", .dp = 2, .zero_stage = 3, .overlaps = false},
                                    {.name = "zero1_one_bucket", .dp = 2, .zero_stage = 1, .bucket_elements = 0},
                                    {.name = "pp2", .pp = 2, .dp = 2, .zero_stage = 1}}) {
      SCOPED_TRACE(layout.name);
      expect_same_bits(run_layout(task, packed(layout, true, false)), two);
    }
    task.global_batch_size = 8, task.micro_batch_size = 1;
    const RunResult alone = run_layout(task, packed({.zero_stage = 3}, true, false));
    const double near = dtype == DType::F32 ? 1e-5 : 5e-3;
    for (const RunLayout& layout : {RunLayout{.dp = 4, .zero_stage = 3},
                                    {.dp = 4, .zero_stage = 3, .instances = 2},
                                    {.dp = 2, .cp = 2, .zero_stage = 3},
                                    {.dp = 4, .zero_stage = 3, .hpz = 2}})
      EXPECT_LE(relative_distance(run_layout(task, packed(layout, true, false)).losses, alone.losses), near);
  }
}

TEST(QuantizedGradients, AreTheSameAtAllStagesAndAfterTheSecondCopy) {
  RunTask task = task_of(DType::BF16);
  task.micro_batch_size = 2, task.global_batch_size = 8;
  const RunResult four = run_layout(task, packed({.dp = 4, .zero_stage = 1}, false, true));
  expect_same_bits(run_layout(task, packed({.dp = 4, .zero_stage = 2}, false, true)), four);
  expect_same_bits(run_layout(task, packed({.dp = 4, .zero_stage = 3}, false, true)), four);
  expect_same_bits(run_layout(task, packed({.dp = 4, .zero_stage = 3, .overlaps = false}, false, true)), four);
  const RunLayout by_nodes = packed({.dp = 4, .zero_stage = 3, .hpz = 2}, false, true);
  const RunResult twice = run_layout(task, by_nodes);
  expect_same_bits(run_layout(task, by_nodes), twice);
  EXPECT_NE(twice.grad_norms, four.grad_norms) << "the sums of nodes are packed again";
  const RunResult alone = run_layout(task, packed({.zero_stage = 2}, false, true));
  expect_same_bits(alone, run_layout(task, {.zero_stage = 2}));
}

/// Of one microbatch, as stages 1 and 2 sum several in another order.
TEST(Bf16Gradients, AreTheSameAtAllStages) {
  for (const DType dtype : {DType::F32, DType::BF16}) {
    RunTask task = task_of(dtype);
    task.micro_batch_size = 2, task.global_batch_size = 8;
    const RunResult four = run_layout(task, in_bf16({.dp = 4, .zero_stage = 1}));
    for (const RunLayout& layout : {RunLayout{.name = "one_bucket", .dp = 4, .zero_stage = 1, .bucket_elements = 0},
                                    {.name = "zero2", .dp = 4, .zero_stage = 2},
                                    {.name = "zero3", .dp = 4, .zero_stage = 3},
                                    {.name = "zero3_no_overlap", .dp = 4, .zero_stage = 3, .overlaps = false},
                                    {.name = "pp2", .pp = 2, .dp = 4, .zero_stage = 1}}) {
      SCOPED_TRACE(layout.name);
      expect_same_bits(run_layout(task, in_bf16(layout)), four);
    }
    const RunLayout by_nodes = in_bf16({.dp = 4, .zero_stage = 3, .hpz = 2});
    const RunResult twice = run_layout(task, by_nodes);
    expect_same_bits(run_layout(task, by_nodes), twice);
    expect_same_bits(run_layout(task, in_bf16({.dp = 4, .zero_stage = 1, .hpz = 2})), twice);
    EXPECT_NE(twice.grad_norms, four.grad_norms) << "the sums of nodes are rounded again";
    EXPECT_NE(run_layout(task, {.dp = 4, .zero_stage = 1}).grad_norms, four.grad_norms);
  }
}

TEST(Bf16Gradients, DoNotTravelAlone) {
  for (const DType dtype : {DType::F32, DType::BF16}) {
    const RunTask task = task_of(dtype);
    for (const int stage : {1, 2, 3})
      expect_same_bits(run_layout(task, in_bf16({.zero_stage = stage})), run_layout(task, {.zero_stage = stage}));
  }
}

/// What is kept in bf16 is rounded before it is sent, and its sum over ranks is in fp32: to send it so changes nothing.
TEST(Bf16Gradients, AreThoseThatAreKeptSo) {
  RunTask task = task_of(DType::BF16);
  task.optimizer.main_grads_dtype = GradDType::Bf16;
  for (const int stage : {2, 3}) {
    const RunLayout layout{.dp = 4, .zero_stage = stage};
    expect_same_bits(run_layout(task, in_bf16(layout)), run_layout(task, layout));
  }
}

/// Over 40 steps: a 256th of each number moves losses by less than 0.2 %, and weights by less than 1 %.
TEST(Bf16Gradients, StayNearWhatIsInFull) {
  constexpr double kLosses = 0.002, kWeights = 0.01;
  for (const DType dtype : {DType::F32, DType::BF16}) {
    RunTask task = task_of(dtype);
    task.steps = 40;
    for (const RunLayout& layout : {RunLayout{.name = "zero1", .dp = 4, .zero_stage = 1},
                                    {.name = "zero3", .dp = 4, .zero_stage = 3},
                                    {.name = "nodes", .dp = 4, .zero_stage = 2, .hpz = 2},
                                    {.name = "hsdp", .dp = 4, .zero_stage = 3, .instances = 2},
                                    {.name = "cp2", .dp = 2, .cp = 2, .zero_stage = 1},
                                    {.name = "tp2", .tp = 2, .dp = 2, .zero_stage = 2}}) {
      SCOPED_TRACE(str(layout.name, " ", name_of(dtype)));
      RunLayout plain = layout;
      plain.hpz = 1;
      const RunResult full = run_layout(task, plain), result = run_layout(task, in_bf16(layout));
      EXPECT_LE(relative_distance(result.losses, full.losses), kLosses);
      EXPECT_LE(relative_distance(test::all_weights(result, task.model), test::all_weights(full, task.model)),
                kWeights);
      EXPECT_NE(result.losses, full.losses);
    }
  }
}

/// Over 40 steps: losses within 2 %, and the weights within 5 %.
TEST(Quantized, StaysNearWhatIsInFull) {
  constexpr double kLosses = 0.02, kWeights = 0.05;
  for (const DType dtype : {DType::F32, DType::BF16}) {
    RunTask task = task_of(dtype);
    task.steps = 40;
    const RunResult full = run_layout(task, {.dp = 4, .zero_stage = 3});
    EXPECT_LT(full.losses.back(), 0.7 * full.losses.front()) << "learns nothing";
    for (const RunLayout& layout : {RunLayout{.name = "zero1", .dp = 4, .zero_stage = 1},
                                    {.name = "zero3", .dp = 4, .zero_stage = 3},
                                    {.name = "nodes", .dp = 4, .zero_stage = 3, .hpz = 2},
                                    {.name = "tp2", .tp = 2, .dp = 2, .zero_stage = 2}}) {
      for (const auto& [weights, gradients] : {std::pair(true, false), {false, true}, {true, true}}) {
        SCOPED_TRACE(str(layout.name, " ", name_of(dtype), weights ? " weights" : "", gradients ? " gradients" : ""));
        const RunResult result = run_layout(task, packed(layout, weights, gradients));
        EXPECT_LE(relative_distance(result.losses, full.losses), kLosses);
        EXPECT_LE(relative_distance(test::all_weights(result, task.model), test::all_weights(full, task.model)),
                  kWeights);
        EXPECT_NE(result.losses, full.losses);
      }
    }
  }
}

/// A checkpoint has the weights in full: the same bits go on, and any other layout goes on from near them.
TEST(Quantized, GoesOnFromACheckpoint) {
  const test::ScratchFolder scratch;
  for (const DType dtype : {DType::F32, DType::BF16}) {
    const RunTask task = task_of(dtype);
    for (const RunLayout& layout : {packed({.name = "zero1", .dp = 2, .zero_stage = 1}, true, true),
                                    packed({.name = "nodes", .dp = 4, .zero_stage = 3, .hpz = 2}, true, true),
                                    in_bf16({.name = "bf16", .dp = 4, .zero_stage = 2}),
                                    in_bf16({.name = "bf16_nodes", .dp = 4, .zero_stage = 1, .hpz = 2})}) {
      SCOPED_TRACE(str(layout.name, " ", name_of(dtype)));
      const Path folder = scratch / str(layout.name, name_of(dtype));
      const Numbers losses = save_and_go_on(task, layout, folder);
      EXPECT_EQ(load_and_go_on(task, layout, folder), losses);
      EXPECT_LE(relative_distance(load_and_go_on(task, {.tp = 2, .pp = 2}, folder), losses), 0.01);
      EXPECT_LE(relative_distance(load_and_go_on(task, packed({.tp = 2, .dp = 2, .zero_stage = 3}, true, true), folder),
                                  losses),
                0.01);
    }
  }
}

/// ZeRO 0 and 1 sum alike; nothing else that changes no sum changes any here.
TEST(PowerSgdLayouts, HaveTheBitsOfOneAnother) {
  for (const DType dtype : {DType::F32, DType::BF16}) {
    const RunTask task = task_of(dtype);
    const RunResult two = run_layout(task, {.dp = 2, .power_sgd_rank = 2});
    for (const RunLayout& layout : {RunLayout{.name = "zero1", .dp = 2, .zero_stage = 1},
                                    {.name = "no_overlap", .dp = 2, .overlaps = false},
                                    {.name = "one_bucket", .dp = 2, .zero_stage = 1, .bucket_elements = 0},
                                    {.name = "recompute",
                                    .dp = 2,
                                    .recompute = {.granularity = Recompute::Granularity::Full, .num_layers = 2}}}) {
      SCOPED_TRACE(layout.name);
      RunLayout with = layout;
      with.power_sgd_rank = 2;
      expect_same_bits(run_layout(task, with), two);
    }
    expect_same_bits(run_layout(task, {.power_sgd_rank = 2}), run_layout(task, {}));
  }
}

/// Over 40 steps: losses within 10 % with factors of 4 columns, of matrices of 32 to 128.
TEST(PowerSgdLayouts, StayNearSumsInFull) {
  RunTask task = task_of(DType::BF16);
  task.steps = 40;
  for (const RunLayout& layout : {RunLayout{.name = "dp4", .dp = 4},
                                  {.name = "tp2_pp2", .tp = 2, .pp = 2, .dp = 2, .zero_stage = 1},
                                  {.name = "hsdp", .dp = 4, .zero_stage = 1, .instances = 2},
                                  {.name = "cp2", .dp = 2, .cp = 2}}) {
    SCOPED_TRACE(layout.name);
    RunLayout with = layout;
    with.power_sgd_rank = 4;
    const RunResult full = run_layout(task, layout), result = run_layout(task, with);
    EXPECT_LE(relative_distance(result.losses, full.losses), 0.1);
    EXPECT_LT(result.losses.back(), 0.8 * result.losses.front());
    EXPECT_NE(result.losses, full.losses);
  }
}

TEST(PowerSgdLayouts, GoOnWithTheSameBits) {
  const test::ScratchFolder scratch;
  for (const DType dtype : {DType::F32, DType::BF16}) {
    const RunTask task = task_of(dtype);
    for (const RunLayout& layout : {RunLayout{.name = "dp2", .dp = 2, .power_sgd_rank = 2},
                                    {.name = "tp2_dp2", .tp = 2, .dp = 2, .zero_stage = 1, .power_sgd_rank = 2},
                                    {.name = "hsdp", .dp = 4, .zero_stage = 1, .instances = 2, .power_sgd_rank = 2}}) {
      SCOPED_TRACE(str(layout.name, " ", name_of(dtype)));
      const Path folder = scratch / str(layout.name, name_of(dtype));
      const Numbers losses = save_and_go_on(task, layout, folder);
      EXPECT_EQ(load_and_go_on(task, layout, folder), losses);
    }
  }
}

/// The sum over ranks of what they remember, by parameter.
std::map<std::string, Numbers> summed_errors(test::LayoutRank& self, Communicator& world) {
  std::map<std::string, Numbers> sums;
  for (const ParamAndGradBuffer* buffer : self.state().buffers()) {
    for (const PowerSgdState& state : buffer->power_sgd_states()) {
      Tensor sum = Tensor::like(state.error);
      ops::copy(state.error, sum);
      world.all_reduce(sum, ReduceOp::Sum).wait();
      sums[state.param->name] = test::numbers(sum);
    }
  }
  return sums;
}

/// Other ranks deal the errors out among themselves; where there are none, they are zeros.
TEST(PowerSgdLayouts, GoOnFromOtherRanksWithAllThatWasPutOff) {
  const test::ScratchFolder scratch;
  const RunTask task = task_of(DType::F32);
  std::map<std::string, Numbers> saved;
  run_local_ranks(4, [&](Communicator& world, int rank) {
    test::LayoutRank self(task, {.dp = 4, .power_sgd_rank = 2}, world);
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
      test::LayoutRank self(other, {.dp = dp, .zero_stage = 1, .power_sgd_rank = 2}, world);
      self.step(7);
      EXPECT_FALSE(test::load(self, scratch / "four", world).has_value());
      const auto sums = summed_errors(self, world);
      EXPECT_EQ(sums.size(), saved.size());
      for (const auto& [name, errors] : sums)
        EXPECT_LE(relative_distance(errors, saved.at(name)), 1e-5) << name << " on " << dp;
    });
  }
  save_and_go_on(task, {.dp = 2}, scratch / "in_full");
  run_local_ranks(2, [&](Communicator& world, int) {
    test::LayoutRank self(task, {.dp = 2, .power_sgd_rank = 2}, world);
    self.step(7);
    EXPECT_FALSE(test::load(self, scratch / "in_full", world).has_value());
    for (const auto& [name, errors] : summed_errors(self, world))
      EXPECT_EQ(errors, Numbers(errors.size(), 0.0)) << name;
  });
  load_and_go_on(task, {.tp = 2}, scratch / "four");
}

}  // namespace
}  // namespace mcpp
