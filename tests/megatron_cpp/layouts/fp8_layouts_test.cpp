// A run in fp8 is independent of its layout: scales depend on full tensors, not on the ranks that hold the shards.
#include <gtest/gtest.h>

#include <map>

#include "megatron_cpp/setup/run_summary.h"
#include "tests/support/disk_folder.h"
#include "tests/support/layouts/compare_runs.h"
#include "tests/support/layouts/layout_run.h"
#include "tests/support/tiny_model.h"

namespace mcpp::fp8_layouts_test {
namespace {

using test::all_weights;
using test::expect_same_bits;
using test::Numbers;
using test::relative_distance;
using test::RunLayout;
using test::RunResult;
using test::RunTask;

constexpr Recompute kFull{.granularity = Recompute::Granularity::Full, .num_layers = 2};
constexpr Recompute kSelective{
    .granularity = Recompute::Granularity::Selective, .core_attn = true, .layernorm = true, .mlp_act = true};

ModelConfig model_of(const std::string& name) {
  ModelConfig config = name == "gpt2" ? test::tiny_gpt2() : test::tiny_llama();
  config.num_layers = 4;
  config.num_attention_heads = 4;
  config.seq_length = 8;
  if (test::runs_on_gpus()) {  // where all sizes of a rank's GEMMs must be multiples of 16
    config.hidden_size = config.seq_length = 64;
    config.ffn_hidden_size = 128;
    config.vocab_size = 64;
  }
  if (name == "gpt2") config.hidden_dropout = config.attention_dropout = 0.1;
  if (name == "experts") {
    config.moe.num_experts = 4;
    config.moe.router_topk = 4;
    config.moe.layer_freq = {2};
    config.moe.latent_size = 24;
    config.moe.shared_expert_intermediate_size = 16;
  }
  return config;
}

RunTask task_of(const std::string& name, Fp8 fp8) {
  RunTask task = test::learnable_task(model_of(name), DType::BF16);
  task.fp8 = fp8;
  return task;
}

/// A layout that adds all sums in the same order as `reference`, and must be bitwise identical to it.
struct EqualLayouts {
  RunLayout layout, reference;
  friend void PrintTo(const EqualLayouts& row, std::ostream* out) { *out << row.layout.name; }
};

const EqualLayouts kEqualLayouts[]{
    {{"recompute_full", {.recompute = kFull}}, {}},
    {{"recompute_selective", {.recompute = kSelective}}, {}},
    {{"pp2", {.pp = 2}}, {}},
    {{"pp2_zb_h1", {.pp = 2, .schedule = ScheduleKind::ZbH1}}, {}},
    {{"pp4_recompute", {.pp = 4, .recompute = kFull}}, {}},
    {{"pp2_zb_v", {.pp = 2, .schedule = ScheduleKind::ZbV, .chunks = 2}}, {}},
    {{"activations_on_host", {.activations_tier = OffloadTier::Host}}, {}},
    {{"dp2_zero1", {.dp = 2, .zero_stage = 1}}, {{.dp = 2}}},
    {{"dp2_zero3", {.dp = 2, .zero_stage = 3}}, {{.dp = 2, .zero_stage = 2}}},
    {{"tp2_pp2", {.tp = 2, .pp = 2, .schedule = ScheduleKind::Interleaved, .chunks = 2}}, {{.tp = 2}}},
    {{"tp2_sp_pp2_zb_h1", {.tp = 2, .pp = 2, .sequence_parallel = true, .schedule = ScheduleKind::ZbH1}},
     {{.tp = 2, .sequence_parallel = true}}},
    {{"cp2_pp2", {.cp = 2, .pp = 2}}, {{.cp = 2}}},
};

class Fp8SameSummationOrderTest : public testing::TestWithParam<std::tuple<const char*, EqualLayouts>> {};
INSTANTIATE_TEST_SUITE_P(Layouts, Fp8SameSummationOrderTest,
                         testing::Combine(testing::Values("gpt2", "llama", "experts"),
                                          testing::ValuesIn(kEqualLayouts)),
                         [](const auto& p) {
                           return str(std::get<0>(p.param), "_", std::get<1>(p.param).layout.name);
                         });

TEST_P(Fp8SameSummationOrderTest, IsBitwiseIdenticalToReference) {
  const auto& [model, row] = GetParam();
  RunTask task = task_of(model, Fp8::Hybrid);
  task.steps = 6;
  expect_same_bits(run_layout(task, row.layout), run_layout(task, row.reference));
}

const RunLayout kOtherSummationOrders[]{
    {"tp2", {.tp = 2}},
    {"tp4_shared_groups", {.tp = 4}},
    {"tp2_sp", {.tp = 2, .sequence_parallel = true}},
    {"tp4_sp", {.tp = 4, .sequence_parallel = true}},
    {"dp2", {.dp = 2}},
    {"dp4_zero3", {.dp = 4, .zero_stage = 3}},
    {"cp2", {.cp = 2}},
    {"cp2_gather", {.cp = 2, .cp_comm_type = CpCommType::AllGather}},
    {"cp2_a2a", {.cp = 2, .cp_comm_type = CpCommType::A2a}},
    {"tp2_cp2_dp2", {.tp = 2, .cp = 2, .dp = 2}},
};

class Fp8OtherSummationOrderTest : public testing::TestWithParam<std::tuple<const char*, Fp8, RunLayout>> {};
INSTANTIATE_TEST_SUITE_P(Layouts, Fp8OtherSummationOrderTest,
                         testing::Combine(testing::Values("gpt2", "llama"), testing::Values(Fp8::E4m3, Fp8::Hybrid),
                                          testing::ValuesIn(kOtherSummationOrders)),
                         [](const auto& p) {
                           return str(std::get<0>(p.param), "_", enum_name(std::get<1>(p.param)), "_",
                                      std::get<2>(p.param).name);
                         });

/// Returns the result on one rank. Each task is run only once.
const RunResult& on_one_rank(const std::string& model, Fp8 fp8) {
  static std::map<std::pair<std::string, Fp8>, RunResult> results;
  const auto [found, is_new] = results.try_emplace({model, fp8});
  if (is_new) found->second = run_layout(task_of(model, fp8), {});
  return found->second;
}

/// Layouts with a different order of summation round bf16 differently in its last bit, and some fp8 values follow in
/// one of their 3 or 4 bits. A layout may therefore differ from one rank by at most as much as fp8 differs from bf16.
TEST_P(Fp8OtherSummationOrderTest, MatchesOneRankWithinFp8Error) {
  const auto& [model, fp8, layout] = GetParam();
  const RunTask task = task_of(model, fp8);
  const RunResult result = run_layout(task, layout);
  const RunResult &one_rank = on_one_rank(model, fp8), &in_bf16 = on_one_rank(model, Fp8::None);
  test::expect_learned(one_rank, task);
  const Numbers weights = all_weights(one_rank, task.model);
  const double losses_error = relative_distance(one_rank.losses, in_bf16.losses),
               weights_error = relative_distance(weights, all_weights(in_bf16, task.model)),
               losses = relative_distance(result.losses, one_rank.losses),
               weights_distance = relative_distance(all_weights(result, task.model), weights);
  std::printf("fp8 moves losses by %.2g and weights by %.2g, the layout by %.2f and %.2f of that\n", losses_error,
              weights_error, losses / losses_error, weights_distance / weights_error);
  EXPECT_GT(losses_error, 0) << "nothing is in fp8";
  EXPECT_LE(losses, losses_error);
  EXPECT_LE(weights_distance, weights_error);
}

RunTask delayed_task(const char* model) {
  RunTask task = task_of(model, Fp8::Hybrid);
  task.fp8_recipe = Fp8RecipeName::Delayed;
  task.low_precision = {{.modules = OneOrList<std::string>("output_layer"), .recipe = GemmRecipe::Delayed}};
  task.steps = 6;
  return task;
}

class DelayedScalingSameSummationOrderTest : public testing::TestWithParam<std::tuple<const char*, EqualLayouts>> {};
INSTANTIATE_TEST_SUITE_P(Layouts, DelayedScalingSameSummationOrderTest,
                         testing::Combine(testing::Values("gpt2", "experts"), testing::ValuesIn(kEqualLayouts)),
                         [](const auto& p) {
                           return str(std::get<0>(p.param), "_", std::get<1>(p.param).layout.name);
                         });

TEST_P(DelayedScalingSameSummationOrderTest, IsBitwiseIdenticalToReference) {
  const auto& [model, row] = GetParam();
  const RunTask task = delayed_task(model);
  expect_same_bits(run_layout(task, row.layout), run_layout(task, row.reference));
}

class DelayedScalingOtherSummationOrderTest : public testing::TestWithParam<RunLayout> {};
INSTANTIATE_TEST_SUITE_P(Layouts, DelayedScalingOtherSummationOrderTest, testing::ValuesIn(kOtherSummationOrders),
                         [](const auto& p) { return p.param.name; });

TEST_P(DelayedScalingOtherSummationOrderTest, MatchesOneRankWithinFp8Error) {
  RunTask task = delayed_task("llama");
  task.steps = task_of("llama", Fp8::None).steps;
  const RunResult one_rank = run_layout(task, {}), result = run_layout(task, GetParam());
  const RunResult& in_bf16 = on_one_rank("llama", Fp8::None);
  test::expect_learned(one_rank, task);
  EXPECT_NE(one_rank.losses, on_one_rank("llama", Fp8::Hybrid).losses) << "scales are those of tensorwise";
  const Numbers weights = all_weights(one_rank, task.model);
  EXPECT_LE(relative_distance(result.losses, one_rank.losses), relative_distance(one_rank.losses, in_bf16.losses));
  EXPECT_LE(relative_distance(all_weights(result, task.model), weights),
            relative_distance(weights, all_weights(in_bf16, task.model)));
}

TEST(DelayedScalingTest, StageWithoutLayersKeepsNoHistories) {
  RunTask task = delayed_task("gpt2");
  task.fp8 = Fp8::None;
  task.fp8_recipe = Fp8RecipeName::Tensorwise;
  expect_same_bits(run_layout(task, {{.pp = 2}}), run_layout(task, {}));
}

/// Evaluations between steps and skipped steps leave no trace in the histories.
TEST(DelayedScalingTest, OnlyAppliedStepsChangeHistories) {
  const RunTask task = delayed_task("llama");
  run_local_ranks(1, [&](Communicator& ranks, int) {
    test::LayoutRank rank(task, {}, ranks);
    const auto histories = [&] {
      std::map<std::string, Numbers> all;
      rank.state().amax_histories()->visit(
          [&](const std::string& module, const Tensor& values) { all[module] = test::to_doubles(values); });
      return all;
    };
    rank.step(0);
    const auto after_step = histories();
    EXPECT_EQ(after_step.size(), 4U * 4 + 1);
    for (const auto& [module, values] : after_step) {
      EXPECT_GT(values[0], 0) << module;
      EXPECT_EQ(values[1], 0) << module << ": one step";
    }
    rank.evaluate(task, 1);
    rank.backward(1);
    rank.state().update({.lr = 1, .rule = {.max_loss = 0, .should_skip_spikes = true}});
    EXPECT_TRUE(rank.state().outcome().is_skipped);
    EXPECT_EQ(histories(), after_step);
    rank.step(1);
    for (const auto& [module, values] : histories()) EXPECT_EQ(values[1], after_step.at(module)[0]) << module;
  });
}

/// The fp8 layers are counted over the full model, independently of the stage.
TEST(Fp8LayersTest, StayInBf16AtBothEndsOnAnyStage) {
  RunTask task = task_of("llama", Fp8::Hybrid);
  task.steps = 3;
  const RunResult all_fp8 = run_layout(task, {});
  task.first_last_layers_bf16 = true;
  const RunResult some = run_layout(task, {});
  EXPECT_NE(some.losses, all_fp8.losses);
  for (const i64 pp : {2, 4}) expect_same_bits(run_layout(task, {{.pp = pp}}), some);
  // Layers 0 and 1 are in bf16, and the model has no others.
  task.model.num_layers = 2;
  const RunResult none = run_layout(task, {});
  task.fp8 = Fp8::None;
  task.first_last_layers_bf16 = false;
  expect_same_bits(none, run_layout(task, {}));
}

/// A non-finite gradient or weight causes a skipped step: the conversion to fp8 does not hide it.
TEST(Fp8TrainingTest, NonFiniteStepChangesNothing) {
  const RunTask task = task_of("llama", Fp8::Hybrid);
  RunResult before = run_layout(task, {});
  before.weights.at("decoder.layers.1.mlp.linear_fc1.weight")[5] = std::nan("");
  run_local_ranks(1, [&](Communicator& ranks, int) {
    RunTask broken = task;
    broken.initial = &before.weights;
    test::LayoutRank rank(broken, {}, ranks);
    const StepOutcome outcome = rank.step(0);
    EXPECT_FALSE(std::isfinite(outcome.loss));
    test::Weights after;
    rank.collect(after);
    EXPECT_EQ(after.at("decoder.layers.0.mlp.linear_fc1.weight"),
              before.weights.at("decoder.layers.0.mlp.linear_fc1.weight"));
  });
}

/// The plan includes the few bytes of the scales, which are all that fp8 adds.
TEST(Fp8MemoryTest, EqualsBf16MemoryPlusScales) {
  for (const RunLayout& layout : {RunLayout{}, RunLayout{{.recompute = kSelective}}, RunLayout{{.tp = 2}}}) {
    for (const char* name : {"llama", "experts"}) {
      const auto kept = [&](Fp8 fp8) {
        const std::vector<MemoryEstimate> plan =
            estimate_memory_by_stage(config_of(task_of(name, fp8), layout), layout.ranks());
        return plan[0].activations;
      };
      i64 peaks[2] = {};
      for (const Fp8 fp8 : {Fp8::None, Fp8::Hybrid}) {
        const RunTask task = task_of(name, fp8);
        run_local_ranks(layout.ranks(), [&](Communicator& ranks, int rank) {
          test::LayoutRank self(task, layout, ranks);
          self.step(0);
          self.device().reset_peak();
          self.step(1);
          const auto of_activations = static_cast<std::size_t>(MemoryClass::Activations);
          if (rank == 0) peaks[fp8 == Fp8::Hybrid ? 1 : 0] = self.device().memory().by_class[of_activations].peak;
        });
      }
      constexpr i64 kLayerScales = 4 * 64, kScales = 4 * kLayerScales;  // four layers with four linear maps each
      const double more = kept(Fp8::Hybrid) - kept(Fp8::None);
      EXPECT_LE(more, kScales) << name;
      EXPECT_GE(more, kScales - kLayerScales)
          << name << ": the peak is before the last layer, which has released its memory";
      // At the peak, some activations of the layer in backward are released already, and those of a gradient exist.
      EXPECT_NEAR(static_cast<double>(peaks[1] - peaks[0]), kScales, 5 * 64) << name;
    }
  }
}

}  // namespace
}  // namespace mcpp::fp8_layouts_test
