// Hints on keys and values of other programs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/strings.h"
#include "megatron_cpp/config/config.h"
#include "tests/support/errors.h"

namespace mcpp::foreign_names_test {
namespace {

using testing::HasSubstr;

constexpr const char* kMinimal = "[model]\nvocab_size = 100\n[training]\ntrain_iters = 10\n";

std::string error_of(const std::string& toml, const std::vector<std::string>& overrides = {}) {
  return test::input_error([&] { parse_config(toml, "run.toml", overrides); });
}

std::string with_model(const std::string& line) {
  return "[training]\ntrain_iters = 10\n[model]\nvocab_size = 100\n" + line;
}

TEST(ForeignNamesTest, SuggestsKeysForNamesOfOtherPrograms) {
  EXPECT_THAT(error_of(with_model("n_layer = 2")),
              HasSubstr("model.n_layer: unknown key; did you mean model.num_layers?"));
  EXPECT_THAT(error_of(with_model("num_key_value_heads = 2")), HasSubstr("did you mean model.num_query_groups?"));
  EXPECT_THAT(error_of(with_model("rope_theta = 2")), HasSubstr("did you mean model.rotary_base?"));
  EXPECT_THAT(error_of(with_model("sliding_window = 2")), HasSubstr("did you mean model.window_size?"));
  EXPECT_THAT(error_of(with_model("low_freq_factor = 2")), HasSubstr("model.rope_scaling_low_freq_factor?"));
  EXPECT_THAT(error_of(kMinimal, {"--learning_rate=1"}), HasSubstr("did you mean --optimizer.lr?"));
  EXPECT_THAT(error_of(kMinimal, {"--bf16"}), HasSubstr("did you mean --training.precision?"));
  EXPECT_THAT(error_of(kMinimal, {"--mlp_bias=true"}), HasSubstr("did you mean --model.add_mlp_bias?"));
  EXPECT_THAT(error_of(kMinimal, {"--gradient_checkpointing"}),
              HasSubstr("did you mean --training.recompute_granularity?"));
  EXPECT_THAT(error_of(kMinimal, {"--gradient_accumulation_steps=4"}),
              HasSubstr("did you mean --training.global_batch_size?"));
  EXPECT_THAT(error_of(kMinimal, {"--training.max_steps=1"}), HasSubstr("did you mean --training.train_iters?"));
  EXPECT_THAT(error_of(kMinimal, {"--training.per_device_train_batch_size=1"}),
              HasSubstr("did you mean --training.micro_batch_size?"));
}

/// Names of the gradient reduction type in other programs.
TEST(ForeignNamesTest, SuggestsKeyForGradientReductionType) {
  for (const char* name : {"grad_reduce_in_bf16", "grad_reduce_in_fp32", "communication_data_type",
                           "mixed_precision_reduce", "reduce_dtype"})
    EXPECT_THAT(error_of(kMinimal, {str("--", name, "=bf16")}),
                HasSubstr("did you mean --parallel.grad_reduce_dtype?"));
  EXPECT_THAT(error_of(kMinimal, {"--accumulate_allreduce_grads_in_fp32"}),
              HasSubstr("always true, unless optimizer.main_grads_dtype or parallel.grad_reduce_dtype is bf16"));
  EXPECT_THAT(error_of(kMinimal, {"--reduce_scatter_with_fp32_accumulation"}),
              HasSubstr("sums over ranks are always in fp32"));
}

/// Every argument of Megatron Core 0.16 for mixtures is a key, leads to one, or has a hint why none is needed.
TEST(ForeignNamesTest, RecognizesMegatronExpertArguments) {
  EXPECT_EQ(
      error_of(with_model("moe_grouped_gemm = true")),
      "run.toml:5:1: model.moe_grouped_gemm: unknown key; the experts of a rank are always multiplied in one grouped "
      "GEMM; remove it");
  EXPECT_EQ(error_of(kMinimal, {"--moe_router_fusion"}),
            "command line: --moe_router_fusion: unknown option; experts are always selected in one pass; remove it");
  EXPECT_THAT(error_of(with_model("num_moe_experts = 8")), HasSubstr("did you mean model.num_experts?"));
  for (const char* name : {"expert_model_parallel_size",
                           "expert_tensor_parallel_size",
                           "num_experts",
                           "moe_layer_freq",
                           "moe_ffn_hidden_size",
                           "moe_shared_expert_intermediate_size",
                           "moe_shared_expert_overlap",
                           "moe_grouped_gemm",
                           "moe_use_legacy_grouped_gemm",
                           "moe_layer_recompute",
                           "moe_extended_tp",
                           "moe_use_upcycling",
                           "moe_router_load_balancing_type",
                           "moe_router_dtype",
                           "moe_latent_size",
                           "moe_router_fusion",
                           "moe_router_score_function",
                           "moe_router_topk",
                           "moe_router_pre_softmax",
                           "moe_router_num_groups",
                           "moe_router_group_topk",
                           "moe_router_topk_scaling_factor",
                           "moe_router_enable_expert_bias",
                           "moe_router_bias_update_rate",
                           "moe_router_force_load_balancing",
                           "moe_router_padding_for_fp8",
                           "moe_aux_loss_coeff",
                           "moe_z_loss_coeff",
                           "moe_input_jitter_eps",
                           "moe_per_layer_logging",
                           "moe_token_dispatcher_type",
                           "moe_enable_deepep",
                           "moe_deepep_num_sms",
                           "moe_flex_dispatcher_backend",
                           "moe_hybridep_num_sms",
                           "moe_router_topk_limited_devices",
                           "moe_permute_fusion",
                           "moe_expert_capacity_factor",
                           "moe_pad_expert_input_to_capacity",
                           "moe_token_drop_policy",
                           "moe_apply_probs_on_input",
                           "moe_upcycling_granularity",
                           "moe_pad_experts_for_cuda_graph_inference",
                           "expert_parallel_comm_backend",
                           "external_cuda_graph",
                           "cuda_graph_scope"}) {
    EXPECT_THAT(error_of(kMinimal, {str("--", name, "=1")}),
                testing::AnyOf(HasSubstr("did you mean --"), HasSubstr("remove it"), HasSubstr("checkpoint upcycle")))
        << name;
  }
}

TEST(ForeignNamesTest, SuggestsNodeDispatchForFlexDispatcher) {
  const std::string hint =
      "not \"flex\"; like flex with DeepEP or HybridEP, \"hierarchical\" sends a token once to each";
  EXPECT_THAT(error_of(kMinimal, {"--parallel.moe_token_dispatcher_type=flex"}), HasSubstr(hint));
  EXPECT_THAT(error_of(std::string(kMinimal) + "[parallel]\nmoe_token_dispatcher_type = \"flex\"\n"), HasSubstr(hint));
  EXPECT_THAT(error_of(kMinimal, {"--parallel.moe_token_dispatcher_type=alltoall_seq"}), HasSubstr("use \"alltoall\""));
  for (const char* impl : {"transformer_engine", "full_iteration"}) {
    EXPECT_THAT(error_of(kMinimal, {str("--device.cuda_graph_impl=", impl)}), HasSubstr("use \"local\"")) << impl;
  }
  EXPECT_THAT(error_of(kMinimal, {"--parallel.moe_token_dispatcher_type=flexible"}), HasSubstr("must be one of"));
  EXPECT_THAT(error_of(kMinimal, {"--moe_enable_deepep=true"}),
              HasSubstr("parallel.moe_token_dispatcher_type = \"hierarchical\" sends a token once to each node"));
}

}  // namespace
}  // namespace mcpp::foreign_names_test
