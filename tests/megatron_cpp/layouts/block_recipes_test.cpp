// Recipes with blocks train the same model on every layout: blocks lie within ranks, so that rounding needs no
// communication and does not depend on the sharding.
#include <gtest/gtest.h>

#include <map>

#include "megatron_cpp/setup/low_precision_check.h"
#include "megatron_cpp/setup/run_summary.h"
#include "tests/support/layouts/compare_runs.h"
#include "tests/support/layouts/layout_run.h"
#include "tests/support/tiny_model.h"

namespace mcpp::block_recipes_test {
namespace {

using test::all_weights;
using test::expect_same_bits;
using test::Numbers;
using test::relative_distance;
using test::RunLayout;
using test::RunResult;
using test::RunTask;

/// Sizes of shards: one block of `mxfp8` or two of `nvfp4`, and one of `blockwise`.
constexpr i64 kSmallBlock = 32, kLargeBlock = 128;
constexpr Recompute kFull{.granularity = Recompute::Granularity::Full, .num_layers = 2};
constexpr Recompute kSelective{
    .granularity = Recompute::Granularity::Selective, .core_attn = true, .layernorm = true, .mlp_act = true};

/// Returns a model whose shards on four ranks are multiples of a block.
ModelConfig model_of(const std::string& name, i64 block) {
  ModelConfig config = name == "gpt2" ? test::tiny_gpt2() : test::tiny_llama();
  config.num_layers = 4;
  config.num_attention_heads = 4;
  config.hidden_size = 4 * block;
  config.ffn_hidden_size = 4 * block;
  config.seq_length = block;
  config.vocab_size = 4 * block;
  config.init_method_std = 0.05;
  if (name == "gpt2") config.hidden_dropout = config.attention_dropout = 0.1;
  if (name == "experts") {
    config.moe.num_experts = 4;
    config.moe.router_topk = 4;
    config.moe.layer_freq = {2};
    config.moe.shared_expert_intermediate_size = 4 * block;
  }
  if (name == "latent") {
    config.rotary_percent = 1;
    config.num_query_groups = 0;
    config.mla = {.is_used = true,
                  .q_lora_rank = block,
                  .kv_lora_rank = block,
                  .qk_head_dim = block,
                  .qk_pos_emb_head_dim = block,
                  .v_head_dim = block};
  }
  return config;
}

LowPrecisionConfig table_of(const char* modules, GemmRecipe recipe, PassRecipeName wgrad = PassRecipeName::Same) {
  return {.modules = OneOrList<std::string>(modules), .recipe = recipe, .wgrad = wgrad};
}

/// Returns a task with a recipe in all linear layers that support it, in fp8 through training.fp8; Bf16: in none.
RunTask task_of(const std::string& name, i64 block, GemmRecipe recipe, Fp8 fp8 = Fp8::E4m3) {
  RunTask task = test::learnable_task(model_of(name, block), DType::BF16);
  if (block == kLargeBlock) task.model.num_layers = 2;
  task.micro_batch_size = 4;
  task.global_batch_size = 16;
  task.steps = block == kLargeBlock ? 2 : 5;
  if (recipe == GemmRecipe::Bf16) return task;
  if (recipe == GemmRecipe::Nvfp4) {
    if (name == "experts") task.low_precision.push_back(table_of("*.experts.*", GemmRecipe::Bf16));
    task.low_precision.push_back(table_of("*", recipe));
    return task;
  }
  task.fp8 = fp8;
  task.fp8_recipe = recipe == GemmRecipe::Mxfp8 ? Fp8RecipeName::Mxfp8 : Fp8RecipeName::Blockwise;
  if (name == "experts") task.low_precision.push_back(table_of("*.experts.*", recipe, PassRecipeName::Bf16));
  task.low_precision.push_back(table_of("output_layer", recipe));
  return task;
}

void expect_possible(const RunTask& task, const RunLayout& layout) {
  EXPECT_EQ(low_precision_problems(config_of(task, layout), layout.ranks()), std::vector<std::string>());
}

/// A layout that adds all sums in the same order as `reference`, and must be bitwise identical to it.
struct EqualLayouts {
  RunLayout layout, reference;
  friend void PrintTo(const EqualLayouts& row, std::ostream* out) { *out << row.layout.name; }
};

const EqualLayouts kEqualLayouts[]{
    {{"recompute_full", {.recompute = kFull}}, {}},
    {{"recompute_selective", {.recompute = kSelective}}, {}},
    {{"pp2_zb_h1", {.pp = 2, .schedule = ScheduleKind::ZbH1}}, {}},
    {{"pp2_zb_v_recompute", {.pp = 2, .schedule = ScheduleKind::ZbV, .chunks = 2, .recompute = kSelective}}, {}},
    {{"dp2_zero1", {.dp = 2, .zero_stage = 1}}, {{.dp = 2}}},
    {{"dp2_zero3", {.dp = 2, .zero_stage = 3}}, {{.dp = 2, .zero_stage = 2}}},
    {{"tp2_sp_pp2_zb_h1", {.tp = 2, .pp = 2, .sequence_parallel = true, .schedule = ScheduleKind::ZbH1}},
     {{.tp = 2, .sequence_parallel = true}}},
    {{"cp2_pp2", {.cp = 2, .pp = 2}}, {{.cp = 2}}},
};

class BlocksSameSummationOrderTest : public testing::TestWithParam<std::tuple<GemmRecipe, const char*, EqualLayouts>> {
};
INSTANTIATE_TEST_SUITE_P(Layouts, BlocksSameSummationOrderTest,
                         testing::Combine(testing::Values(GemmRecipe::Mxfp8, GemmRecipe::Nvfp4),
                                          testing::Values("gpt2", "llama", "experts", "latent"),
                                          testing::ValuesIn(kEqualLayouts)),
                         [](const auto& p) {
                           return str(enum_name(std::get<0>(p.param)), "_", std::get<1>(p.param), "_",
                                      std::get<2>(p.param).layout.name);
                         });

TEST_P(BlocksSameSummationOrderTest, IsBitwiseIdenticalToReference) {
  const auto& [recipe, model, row] = GetParam();
  RunTask task = task_of(model, kSmallBlock, recipe, Fp8::Hybrid);
  task.steps = 3;
  if (row.layout.chunks > 1) task.model.num_layers = 8;
  expect_possible(task, row.layout);
  expect_same_bits(run_layout(task, row.layout), run_layout(task, row.reference));
}

TEST(BlockwiseSameSummationOrderTest, IsBitwiseIdenticalToReference) {
  const RunTask task = task_of("llama", kLargeBlock, GemmRecipe::Blockwise);
  const RunLayout pipeline{{.pp = 2, .schedule = ScheduleKind::ZbH1}};
  expect_possible(task, pipeline);
  expect_same_bits(run_layout(task, pipeline), run_layout(task, {}));
  expect_same_bits(run_layout(task, {{.dp = 2, .zero_stage = 3}}), run_layout(task, {{.dp = 2, .zero_stage = 2}}));
}

const RunLayout kOtherSummationOrders[]{
    {"tp2", {.tp = 2}},
    {"tp4_shared_groups", {.tp = 4}},
    {"tp2_sp", {.tp = 2, .sequence_parallel = true}},
    {"dp4_zero3", {.dp = 4, .zero_stage = 3}},
    {"cp2", {.cp = 2}},
    {"cp2_a2a", {.cp = 2, .cp_comm_type = CpCommType::A2a}},
    {"tp2_cp2_dp2", {.tp = 2, .cp = 2, .dp = 2, .sequence_parallel = true}},
};
const RunLayout kExpertLayouts[]{
    {"ep2", {.dp = 2, .ep = 2}},
    {"ep2_etp2", {.tp = 2, .dp = 2, .ep = 2, .etp = 2}},
    {"tp2_ep4", {.tp = 2, .dp = 2, .sequence_parallel = true, .ep = 4, .etp = 1}},
};

/// Returns the result on one rank. Each task is run only once.
const RunResult& on_one_rank(const std::string& model, i64 block, GemmRecipe recipe) {
  static std::map<std::tuple<std::string, i64, GemmRecipe>, RunResult> results;
  const auto [found, is_new] = results.try_emplace({model, block, recipe});
  if (is_new) found->second = run_layout(task_of(model, block, recipe), {});
  return found->second;
}

/// Expects that a layout differs from one rank by at most as much as the recipe differs from bf16: other orders of
/// summation round bf16 differently in its last bit, and some values follow in one of their few bits.
void expect_within_recipe_error(const std::string& model, i64 block, GemmRecipe recipe, const RunLayout& layout) {
  const RunTask task = task_of(model, block, recipe);
  expect_possible(task, layout);
  const RunResult result = run_layout(task, layout);
  const RunResult &one_rank = on_one_rank(model, block, recipe), &in_bf16 = on_one_rank(model, block, GemmRecipe::Bf16);
  const Numbers weights = all_weights(one_rank, task.model);
  const double losses_error = relative_distance(one_rank.losses, in_bf16.losses),
               weights_error = relative_distance(weights, all_weights(in_bf16, task.model)),
               losses = relative_distance(result.losses, one_rank.losses),
               weights_distance = relative_distance(all_weights(result, task.model), weights);
  std::printf("the recipe moves losses by %.2g and weights by %.2g, the layout by %.2f and %.2f of that\n",
              losses_error, weights_error, losses / losses_error, weights_distance / weights_error);
  EXPECT_GT(losses_error, 0) << "nothing is in low precision";
  EXPECT_LE(losses, losses_error);
  EXPECT_LE(weights_distance, weights_error);
}

class BlocksOtherSummationOrderTest : public testing::TestWithParam<std::tuple<GemmRecipe, const char*, RunLayout>> {};
const auto name_of_case = [](const testing::TestParamInfo<std::tuple<GemmRecipe, const char*, RunLayout>>& p) {
  return str(enum_name(std::get<0>(p.param)), "_", std::get<1>(p.param), "_", std::get<2>(p.param).name);
};
INSTANTIATE_TEST_SUITE_P(Layouts, BlocksOtherSummationOrderTest,
                         testing::Combine(testing::Values(GemmRecipe::Mxfp8, GemmRecipe::Nvfp4),
                                          testing::Values("gpt2", "llama"), testing::ValuesIn(kOtherSummationOrders)),
                         name_of_case);
INSTANTIATE_TEST_SUITE_P(Experts, BlocksOtherSummationOrderTest,
                         testing::Combine(testing::Values(GemmRecipe::Mxfp8), testing::Values("experts"),
                                          testing::ValuesIn(kExpertLayouts)),
                         name_of_case);

TEST_P(BlocksOtherSummationOrderTest, MatchesOneRankWithinRecipeError) {
  const auto& [recipe, model, layout] = GetParam();
  expect_within_recipe_error(model, kSmallBlock, recipe, layout);
}

class BlockwiseOtherSummationOrderTest : public testing::TestWithParam<RunLayout> {};
INSTANTIATE_TEST_SUITE_P(Layouts, BlockwiseOtherSummationOrderTest,
                         testing::Values(RunLayout{"tp2_sp", {.tp = 2, .sequence_parallel = true}},
                                         RunLayout{"cp2", {.cp = 2}}),
                         [](const auto& p) { return p.param.name; });

TEST_P(BlockwiseOtherSummationOrderTest, MatchesOneRankWithinRecipeError) {
  expect_within_recipe_error("llama", kLargeBlock, GemmRecipe::Blockwise, GetParam());
}

/// Blocks save no scales, so the memory equals the memory in bf16.
TEST(BlockMemoryTest, EqualsBf16Memory) {
  for (const RunLayout& layout : {RunLayout{}, RunLayout{{.recompute = kSelective}}, RunLayout{{.tp = 2}}}) {
    for (const char* name : {"llama", "experts"}) {
      double plans[2] = {};
      i64 peaks[2] = {};
      for (const GemmRecipe recipe : {GemmRecipe::Bf16, GemmRecipe::Mxfp8}) {
        const RunTask task = task_of(name, kSmallBlock, recipe);
        const std::size_t at = recipe == GemmRecipe::Bf16 ? 0 : 1;
        plans[at] = estimate_memory_by_stage(config_of(task, layout), layout.ranks())[0].activations;
        run_local_ranks(layout.ranks(), [&](Communicator& ranks, int rank) {
          test::LayoutRank self(task, layout, ranks);
          self.step(0);
          self.device().reset_peak();
          self.step(1);
          const auto of_activations = static_cast<std::size_t>(MemoryClass::Activations);
          if (rank == 0) peaks[at] = self.device().memory().by_class[of_activations].peak;
        });
      }
      EXPECT_EQ(plans[1], plans[0]) << name;
      EXPECT_EQ(peaks[1], peaks[0]) << name;
    }
  }
}

/// A table changes the layers that it names, and only those. The first table that matches a name applies.
TEST(LowPrecisionTablesTest, ApplyToNamedLayers) {
  RunTask task = task_of("llama", kSmallBlock, GemmRecipe::Bf16);
  task.steps = 2;
  const RunResult in_bf16 = run_layout(task, {});
  const auto with_tables = [&](std::vector<LowPrecisionConfig> tables) {
    RunTask changed = task;
    changed.low_precision = std::move(tables);
    return run_layout(changed, {});
  };
  const RunResult all = with_tables({table_of("decoder.*", GemmRecipe::Mxfp8)});
  EXPECT_NE(all.losses, in_bf16.losses);
  EXPECT_NE(with_tables({table_of("output_layer", GemmRecipe::Mxfp8)}).losses, in_bf16.losses);
  EXPECT_NE(with_tables({table_of("decoder.layers.0.mlp.*", GemmRecipe::Mxfp8)}).losses, all.losses);
  EXPECT_NE(with_tables({table_of("decoder.*", GemmRecipe::Nvfp4)}).losses, all.losses);
  expect_same_bits(with_tables({table_of("*", GemmRecipe::Bf16), table_of("decoder.*", GemmRecipe::Mxfp8)}), in_bf16);
  RunTask by_key = task;
  by_key.fp8 = Fp8::E4m3;
  by_key.fp8_recipe = Fp8RecipeName::Mxfp8;
  expect_same_bits(run_layout(by_key, {}), all);
  by_key.low_precision = {table_of("*", GemmRecipe::Bf16)};
  expect_same_bits(run_layout(by_key, {}), in_bf16);
}

}  // namespace
}  // namespace mcpp::block_recipes_test
