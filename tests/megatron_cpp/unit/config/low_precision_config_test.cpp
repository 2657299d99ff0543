// Recipes of linear layers in the configuration: training.fp8_recipe, tables of training.low_precision, and their check
// against the model and the layout.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "megatron_cpp/config/config.h"
#include "megatron_cpp/config/config_compare.h"
#include "megatron_cpp/setup/low_precision_check.h"
#include "megatron_cpp/setup/model_provider.h"
#include "megatron_cpp/setup/run_summary.h"
#include "model/block_trace.h"
#include "tests/support/errors.h"
#include "tests/support/tiny_model.h"

namespace mcpp::low_precision_config_test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

constexpr const char* kBase =
    "[model]\nnum_layers = 12\nvocab_size = 100\nhidden_size = 768\nnum_attention_heads = 12\nseq_length = 1024\n"
    "[training]\ntrain_iters = 10\nglobal_batch_size = 8\nprecision = \"bf16\"\n";

Config parse(const std::string& training, const std::vector<std::string>& options = {}) {
  return parse_config(kBase + training, "run.toml", options);
}
std::string table(const std::string& keys) {
  return "[[training.low_precision]]\n" + keys + "\n";
}
/// Returns the message on a run of `ranks` ranks.
std::string error_of(const std::string& training, const std::vector<std::string>& options = {}, int ranks = 1) {
  return test::input_error([&] { check_low_precision(parse(training, options), ranks); });
}
std::string tp(i64 ranks) {
  return str("--parallel.tensor_model_parallel_size=", ranks);
}

TEST(LowPrecisionConfigTest, ReadsRecipesOfPasses) {
  const Config c = parse(table("modules = \"decoder.layers.0.*\"\nrecipe = \"bf16\"") +
                         table("modules = [\"*.mlp.*\", \"output_layer\"]\nrecipe = \"mxfp8\"\nwgrad = \"bf16\"\n"
                               "dgrad = \"blockwise\"\ngradients = \"e5m2\""));
  const std::vector<LowPrecisionConfig>& tables = c.training.low_precision;
  ASSERT_EQ(tables.size(), 2U);
  EXPECT_TRUE(tables[0].passes().is_bf16());
  EXPECT_EQ(tables[1].passes(),
            (PassRecipes{GemmRecipe::Mxfp8, GemmRecipe::Blockwise, GemmRecipe::Bf16, Fp8Format::E5M2}));
  EXPECT_EQ(parse_config(print_config(c), "printed.toml", {}).training.low_precision, tables);
  check_low_precision(c, 1);
}

TEST(LowPrecisionConfigTest, TablesOverrideFp8Keys) {
  const Config c = parse("fp8 = \"hybrid\"\nfp8_recipe = \"blockwise\"\n" +
                         table("modules = \"*.linear_proj\"\nrecipe = \"mxfp8\"") +
                         table("modules = \"decoder.layers.1.*\"\nrecipe = \"bf16\"") +
                         table("modules = \"output_layer\"\nrecipe = \"tensorwise\""));
  const Fp8Layers fp8 = fp8_layers(c);
  const auto recipe = [&](const char* module, i64 layer) {
    const PassRecipes* found = fp8.find(module, layer);
    return found ? found->forward : GemmRecipe::Bf16;
  };
  EXPECT_EQ(recipe("decoder.layers.0.mlp.linear_fc1", 0), GemmRecipe::Blockwise);
  EXPECT_EQ(recipe("decoder.layers.1.mlp.linear_fc1", 1), GemmRecipe::Bf16);
  EXPECT_EQ(recipe("decoder.layers.1.self_attention.linear_proj", 1), GemmRecipe::Mxfp8);
  EXPECT_EQ(fp8.find("output_layer")->forward, GemmRecipe::Tensorwise);
  EXPECT_EQ(fp8.find("decoder.layers.0.mlp.experts.linear_fc1"), nullptr) << "only tables name routed experts";
  EXPECT_EQ(fp8.recipe.gradients, Fp8Format::E5M2);
}

TEST(LowPrecisionConfigTest, RejectsInvalidTables) {
  EXPECT_THAT(error_of(table("modules = \"*\"\nrecipe = \"fp6\"")),
              HasSubstr("recipe: must be one of \"bf16\", \"tensorwise\", \"delayed\", \"blockwise\", \"mxfp8\", "
                        "\"nvfp4\", not \"fp6\""));
  EXPECT_THAT(error_of(table("modules = \"*\"\nwgrad = \"e4m3\"")), HasSubstr("wgrad: must be one of \"same\""));
  EXPECT_THAT(error_of(table("match = \"*\"")), HasSubstr("training.low_precision: match: unknown key"));
  EXPECT_THAT(error_of(table("recipe = \"mxfp8\"")), HasSubstr("table 1: modules: is missing"));
  EXPECT_THAT(error_of(table("modules = \"*\"\nrecipe = \"mxfp8\"\ndgrad = \"bf16\"\nwgrad = \"bf16\"\n"
                             "gradients = \"e5m2\"")),
              HasSubstr("table 1: gradients: only read when dgrad or wgrad has a recipe of fp8"));
  EXPECT_THAT(error_of(table("modules = \"*\"\nrecipe = \"nvfp4\"\ngradients = \"e5m2\"")),
              HasSubstr("table 1: gradients: only read when dgrad or wgrad has a recipe of fp8"));
  EXPECT_THAT(error_of(table("modules = \"*\"\nrecipe = \"mxfp8\""), {"--training.precision=fp32"}),
              HasSubstr("training.low_precision: needs training.precision \"bf16\""));
  EXPECT_THAT(error_of("fp8_recipe = \"mxfp8\""), HasSubstr("training.fp8_recipe: only read when fp8 is"));
}

TEST(LowPrecisionConfigTest, RejectsPatternsWithoutLinearLayer) {
  EXPECT_EQ(error_of(table("modules = \"decoder.layers.*.mlp.linear_fc\"\nrecipe = \"mxfp8\"")),
            "training.low_precision: table 1: modules: no linear layer matches \"decoder.layers.*.mlp.linear_fc\"; did "
            "you mean decoder.layers.*.mlp.linear_fc1?");
  EXPECT_THAT(error_of(table("modules = \"*router*\"\nrecipe = \"mxfp8\"")),
              AllOf(HasSubstr("no linear layer matches"), HasSubstr("output_layer")));
  EXPECT_THAT(error_of(table("modules = \"*norm*\"\nrecipe = \"mxfp8\"")), HasSubstr("no linear layer matches"));
  EXPECT_THAT(error_of(table("modules = \"*\"\nrecipe = \"mxfp8\"") + table("modules = \"output_layer\"")),
              HasSubstr("table 2: modules: the 1 linear layers that match \"output_layer\" match an earlier table"));
}

/// All problems of a layout are reported at once, and each once for all layers.
TEST(LowPrecisionConfigTest, RejectsBlocksThatStraddleRanks) {
  const std::string recipe = "fp8 = \"e4m3\"\nfp8_recipe = \"blockwise\"\n";
  EXPECT_EQ(error_of(recipe, {tp(2)}, 2), "");
  EXPECT_THAT(
      error_of(recipe, {tp(4)}, 4),
      AllOf(HasSubstr("training.fp8_recipe: decoder.layers.*.self_attention.linear_qkv: 576 output features per "
                      "rank with parallel.tensor_model_parallel_size 4 are not a multiple of the block size 128"),
            HasSubstr("linear_proj: 192 input features per rank"), Not(HasSubstr("linear_fc1"))));
  EXPECT_EQ(error_of("fp8 = \"e4m3\"\nfp8_recipe = \"mxfp8\"\n", {tp(4)}, 4), "");
  EXPECT_THAT(
      error_of(table("modules = \"*.linear_proj\"\nrecipe = \"blockwise\""), {tp(4)}, 4),
      AllOf(HasSubstr("training.low_precision: decoder.layers.*.self_attention.linear_proj: 192 input features"),
            Not(HasSubstr("linear_qkv"))));
  const std::vector<std::string> cp{"--parallel.context_parallel_size=8"};
  EXPECT_THAT(
      error_of(recipe, cp, 8),
      HasSubstr("64 consecutive positions of a context-parallel rank x training.micro_batch_size 1 are not a "
                "multiple of the block size 128; blocks of tokens in weight gradients must not straddle ranks"));
  EXPECT_EQ(error_of(recipe, {cp[0], "--training.micro_batch_size=2"}, 8), "");
  EXPECT_EQ(error_of(table("modules = \"*\"\nrecipe = \"blockwise\"\nwgrad = \"bf16\""), cp, 8), "");
}

TEST(LowPrecisionConfigTest, LimitsRecipesOfRoutedExperts) {
  const std::vector<std::string> experts{"--model.num_experts=4", "--model.moe_ffn_hidden_size=192",
                                         "--model.moe_router_topk=2"};
  const auto error = [&](const std::string& keys, std::vector<std::string> more = {}, int ranks = 1) {
    more.insert(more.end(), experts.begin(), experts.end());
    return error_of(table("modules = \"*.experts.*\"\n" + keys), more, ranks);
  };
  EXPECT_THAT(error("recipe = \"tensorwise\""),
              AllOf(HasSubstr("routed experts support \"blockwise\" and \"mxfp8\", not \"tensorwise\""),
                    HasSubstr("set wgrad = \"bf16\"")));
  EXPECT_THAT(error("recipe = \"nvfp4\"\nwgrad = \"bf16\""), HasSubstr("not \"nvfp4\""));
  EXPECT_EQ(error("recipe = \"blockwise\"\nwgrad = \"bf16\""), "");
  EXPECT_THAT(error("recipe = \"blockwise\"\nwgrad = \"bf16\"", {tp(2), "--parallel.sequence_parallel=true"}, 2),
              HasSubstr("decoder.layers.*.mlp.experts.linear_fc2: 96 input features per rank with "
                        "parallel.expert_tensor_parallel_size 2"));
}

/// Layers whose experts are in bf16 exchange tokens in bf16, but no experts in fp8 at all is an error.
TEST(LowPrecisionConfigTest, DispatchInFp8NeedsRoutedExpertsWithBlocks) {
  const std::vector<std::string> experts{"--model.num_experts=4", "--model.moe_ffn_hidden_size=192"};
  const auto error = [&](const std::string& tables, const std::vector<std::string>& more) {
    return error_of("moe_fp8_dispatch = true\n" + tables, more);
  };
  const std::string of_experts = table("modules = \"*.experts.*\"\nrecipe = \"mxfp8\"\nwgrad = \"bf16\"");
  EXPECT_EQ(error(of_experts, experts), "");
  EXPECT_EQ(error(table("modules = \"decoder.layers.0.*\"") + of_experts, experts), "");
  EXPECT_THAT(error("", experts), HasSubstr("training.moe_fp8_dispatch: needs a table of training.low_precision"));
  EXPECT_EQ(
      error(table("modules = \"*.self_attention.*\"\nrecipe = \"mxfp8\""), experts),
      "training.moe_fp8_dispatch: no routed expert has the recipe \"blockwise\" or \"mxfp8\"; set it in a table of "
      "training.low_precision that matches \"*.experts.*\", or remove the key");
  EXPECT_EQ(error(table("modules = \"*\"\nrecipe = \"mxfp8\""), {}),
            "training.moe_fp8_dispatch: the model has no routed experts (model.num_experts); remove it");
  EXPECT_THAT(
      describe_run(parse("moe_fp8_dispatch = true\n" + table("modules = \"decoder.layers.0.*\"") + of_experts, experts),
                   1),
      HasSubstr("routed experts receive tokens of 11 and gradients of 11 layers in fp8\n"));
}

TEST(LowPrecisionConfigTest, RejectsSizesThatGpuGemmsDoNotSupport) {
  const auto error = [](const std::string& training, i64 hidden_size) {
    return error_of(training, {"--device.device=cuda", str("--model.hidden_size=", hidden_size)});
  };
  const std::string blockwise = "fp8 = \"e4m3\"\nfp8_recipe = \"blockwise\"\n",
                    mxfp8 = table("modules = \"*\"\nrecipe = \"bf16\"\nwgrad = \"mxfp8\""),
                    nvfp4 = table("modules = \"*\"\nrecipe = \"nvfp4\"");
  for (const std::string& recipe : {blockwise, mxfp8, nvfp4}) EXPECT_EQ(error(recipe, 768), "");
  EXPECT_EQ(error(blockwise, 48 * 12), "");
  EXPECT_THAT(error(blockwise, 50 * 12), HasSubstr("training.fp8: on a GPU sizes are multiples of 16, but "
                                                   "model.hidden_size is 600"));
  for (const std::string& recipe : {mxfp8, nvfp4})
    EXPECT_THAT(error(recipe, 44 * 12), HasSubstr("training.low_precision: on a GPU sizes are multiples of 32, but "
                                                  "model.hidden_size is 528"));
  EXPECT_EQ(error(table("modules = \"*\""), 50 * 12), "") << "bf16";
  EXPECT_EQ(error(table("modules = \"output_layer\"\nrecipe = \"tensorwise\""), 768), "");
  EXPECT_THAT(
      error_of(table("modules = \"*\"\nrecipe = \"tensorwise\""), {"--device.device=cuda", "--device.gelu_epilogue"}),
      HasSubstr("device.gelu_epilogue: fp8 GEMMs have no epilogues; remove it or training.low_precision"));
}

TEST(LowPrecisionConfigTest, RejectsChangeOnResume) {
  const Config before = parse("fp8 = \"e4m3\"\n"), now = parse("fp8 = \"e4m3\"\nfp8_recipe = \"mxfp8\"\n"),
               tables = parse("fp8 = \"e4m3\"\n" + table("modules = \"output_layer\"\nrecipe = \"mxfp8\""));
  EXPECT_THAT(test::input_error([&] { check_same_run(before, now, "iter_5", Log()); }),
              HasSubstr("training.fp8_recipe: \"tensorwise\" in the checkpoint, \"mxfp8\" now"));
  EXPECT_THAT(test::input_error([&] { check_same_run(before, tables, "iter_5", Log()); }),
              HasSubstr("training.low_precision: [] in the checkpoint, [{modules = \"output_layer\""));
  Config dispatch = tables;
  dispatch.training.moe_fp8_dispatch = true;
  EXPECT_THAT(test::input_error([&] { check_same_run(tables, dispatch, "iter_5", Log()); }),
              HasSubstr("training.moe_fp8_dispatch: false in the checkpoint, true now"));
  Config accepted = tables;
  accepted.checkpoint.allow_changed_keys = {"training.low_precision"};
  check_same_run(before, accepted, "iter_5", Log());
}

TEST(LowPrecisionConfigTest, IsReportedInPlan) {
  EXPECT_THAT(describe_run(parse("fp8 = \"e4m3\"\nfp8_recipe = \"mxfp8\"\n"), 1),
              HasSubstr("bf16, linear maps of 12 layers in fp8 (e4m3, mxfp8), emulated"));
  EXPECT_THAT(describe_run(parse(table("modules = \"*.mlp.*\"\nrecipe = \"mxfp8\"\nwgrad = \"bf16\"\ngradients = "
                                       "\"e5m2\"")),
                           1),
              HasSubstr("low precision:\n  *.mlp.*: 24 linear layers, mxfp8, wgrad bf16, gradients in e5m2\n"));
}

/// The largest GEMM is that of fc1 or fc2 (768 x 3072, 1024 tokens): the gradient of the weight, both operands of which
/// have 1024 rows, or the product with the weight.
TEST(LowPrecisionConfigTest, PlansWorkspaceOfLargestGemmOnGpu) {
  constexpr double kTokens = 1024, kIn = 768, kOut = 3072, kWeight = kIn * kOut;
  constexpr double kWgrad = kTokens * (kIn + kOut), kForward = kTokens * kOut + kWeight;
  const auto bytes = [](const std::string& training, std::vector<std::string> options = {}, int ranks = 1) {
    if (options.empty() || !options[0].starts_with("--device")) options.emplace_back("--device.device=cuda");
    options.emplace_back("--model.untie_embeddings_and_output_weights");
    return low_precision_workspace_bytes(parse(training, options), ranks);
  };
  const auto recipe = [](const char* name) { return table(str("modules = \"decoder.*\"\nrecipe = \"", name, "\"")); };
  EXPECT_EQ(bytes(recipe("tensorwise")), std::max(kForward, kWgrad));
  EXPECT_EQ(bytes(recipe("mxfp8")), std::max(kForward, kWgrad) * (1 + 1 / 32.0 + 2));
  EXPECT_EQ(bytes(recipe("blockwise")), std::max(kForward, kWgrad) * (1 + 4 / 128.0 + 2));
  EXPECT_EQ(bytes(recipe("nvfp4")),
            std::max(kForward * (0.5 + 1 / 16.0 + 2) + 4 * kTokens * kIn, kWgrad * (0.5 + 1 / 16.0 + 4) + 4 * kWeight));
  EXPECT_LT(bytes(recipe("mxfp8"), {tp(2)}, 2), bytes(recipe("mxfp8")));
  EXPECT_EQ(bytes(recipe("bf16")), 0);
  EXPECT_EQ(bytes(recipe("mxfp8"), {"--device.device=cpu"}), 0);
  EXPECT_THAT(describe_run(parse(recipe("mxfp8"), {"--device.device=cuda"}), 1),
              HasSubstr("GEMM workspace        up to "));
}

/// The check knows every linear layer whose GEMMs a table can put into low precision, in every kind of layer.
TEST(LowPrecisionConfigTest, ChecksEveryLayerThatRounds) {
  for (const auto& [name, model] : test::tiny_variants()) {
    Config config;
    config.model = model;
    config.training.precision = Precision::Bf16;
    config.training.low_precision = {{.modules = OneOrList<std::string>("*"), .recipe = GemmRecipe::Tensorwise}};
    ActivationSetup setup{.dtype = DType::BF16};
    setup.fp8 = fp8_layers(config);
    std::set<std::string> rounded;
    BlockTraces traces(model);
    for (const BlockSpec& block : BlockKinds(model).kinds) {
      if (block.moe()) continue;  // rejects tensorwise
      for (const OpRecord& op : traces.get(setup, block).forward.ops)
        if (op.recipe != GemmRecipe::Bf16) rounded.insert(op.weight);
    }
    for (std::string module : rounded) {
      module.resize(module.rfind(".weight"));
      module.replace(0, std::string_view("decoder.layers.0").size(), "*");  // traces give every kind of layer index 0
      if (module.ends_with(".gate")) continue;                              // part of linear_qkv
      config.training.low_precision[0].modules = OneOrList<std::string>(module);
      EXPECT_THAT(low_precision_problems(config, 1), IsEmpty()) << name;
    }
    EXPECT_FALSE(rounded.empty() && !model.moe.num_experts) << name;
  }
}

}  // namespace
}  // namespace mcpp::low_precision_config_test
