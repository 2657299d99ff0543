// Maximal update parametrization: classes of parameters, initial values and factors. Training is compared with PyTorch
// in tests/megatron_cpp/layouts/golden_mup_test.cpp.
#include "model/mup.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "model/meta_model.h"
#include "tests/support/tiny_model.h"

namespace mcpp {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

/// Standard deviations of initial values, and width multipliers, of one parameter.
struct Scaling {
  double std, scaled_std, width_mult;
};

/// Returns the scaling of each parameter that is initialized with normal random values.
std::map<std::string, Scaling> scaling_of(ModelConfig config) {
  std::map<std::string, Scaling> all;
  visit_meta_params(config, [&](const Param& param) {
    if (param.init == Init::Normal) all[param.name] = {0, param.init_std, param.width_mult};
  });
  config.mup = {};
  visit_meta_params(config, [&](const Param& param) {
    if (param.init == Init::Normal) all.at(param.name).std = param.init_std;
    EXPECT_EQ(param.width_mult, 1) << param.name;
  });
  return all;
}

/// Checks that parameters whose names contain one of `inputs_and_outputs` are not scaled, and all others are.
void expect_scaled_except(const ModelConfig& config, const std::vector<std::string>& unscaled, std::size_t count) {
  const double width = config.width_mult();
  std::size_t found = 0;
  for (const auto& [name, scaling] : scaling_of(config)) {
    const bool is_scaled = std::ranges::count(unscaled, name) == 0;
    found += !is_scaled;
    EXPECT_EQ(scaling.width_mult, is_scaled ? width : 1) << name;
    EXPECT_EQ(scaling.scaled_std, is_scaled ? scaling.std / std::sqrt(width) : scaling.std) << name;
  }
  EXPECT_EQ(found, count);
}

ModelConfig with_mup(ModelConfig config) {
  config.mup = {.is_used = true, .base_hidden_size = 8};
  return config;
}

TEST(MupTest, ScalesHiddenMatricesOnly) {
  const std::vector<std::string> gpt2{"embedding.word_embeddings.weight", "embedding.position_embeddings.weight"},
      llama{"embedding.word_embeddings.weight", "output_layer.weight"};
  expect_scaled_except(with_mup(test::tiny_gpt2()), gpt2, 2);
  expect_scaled_except(with_mup(test::tiny_llama()), llama, 2);
  ModelConfig experts = test::tiny_llama();
  experts.moe.num_experts = 4, experts.moe.ffn_hidden_size = 24, experts.moe.shared_expert_intermediate_size = 16;
  experts.moe.shared_expert_gate = true;
  experts.mtp_num_layers = 1;
  expect_scaled_except(with_mup(experts), llama, 2);
  ModelConfig sinks = test::tiny_gpt_oss();
  std::vector<std::string> unscaled = llama;
  for (const char* layer : {"0", "1", "2"})
    unscaled.push_back(str("decoder.layers.", layer, ".self_attention.core_attention.softmax_offset"));
  expect_scaled_except(with_mup(sinks), unscaled, 5);
}

TEST(MupTest, ScalesLogitsAndScores) {
  ModelConfig config = test::tiny_llama();  // hidden_size 32, 4 heads
  EXPECT_EQ(config.logit_scale(), 1);
  EXPECT_EQ(config.softmax_scale(), 1 / std::sqrt(8.0));
  config.mup = {.is_used = true};
  EXPECT_EQ(config.width_mult(), 1);
  EXPECT_EQ(config.softmax_scale(), 1.0 / 8);
  config.mup = {.is_used = true, .base_hidden_size = 8, .base_head_dim = 4};
  EXPECT_EQ(config.width_mult(), 4);
  EXPECT_EQ(config.logit_scale(), 0.25);
  EXPECT_EQ(config.softmax_scale(), 2.0 / 8);
  config.mup.output_mult = 3;
  config.mup.attn_scale_power = 0.5;
  EXPECT_EQ(config.logit_scale(), 3);
  EXPECT_EQ(config.softmax_scale(), 2 / std::sqrt(8.0));
}

TEST(MupTest, EmbeddingsHaveTheirOwnInitialValues) {
  ModelConfig config = test::tiny_gpt2();
  config.embedding_init_method_std = 0.5;
  std::map<std::string, Scaling> all = scaling_of(config);
  EXPECT_EQ(all.at("embedding.word_embeddings.weight").std, 0.5);
  EXPECT_EQ(all.at("embedding.position_embeddings.weight").std, 0.5);
  EXPECT_EQ(all.at("decoder.layers.0.self_attention.linear_qkv.weight").std, 0.1);
  config.untie_embeddings_and_output_weights = true;
  EXPECT_EQ(scaling_of(config).at("output_layer.weight").std, 0.1);
}

/// A copy of tied embeddings on the last pipeline stage must begin with the same values.
TEST(MupTest, TiedCopiesHaveSameInitialValues) {
  ModelConfig config = test::tiny_gpt2();
  config.embedding_init_method_std = 0.5;
  MetaModelContext meta;
  ModelContext context = meta.context(config);
  context.final_norm_rank = 1;
  GPTModel last(context, {.first_layer = 2, .end_layer = 3, .has_embedding = false, .has_output = true}, nullptr);
  last.visit([](const Param& param, int) {
    EXPECT_EQ(param.init_std == 0.5, param.name == "embedding.word_embeddings.weight") << param.name;
  });
}

/// So must the copy that multi-token prediction reads if the embeddings are not tied.
TEST(MupTest, CopiesForPredictionHaveSameInitialValues) {
  ModelConfig config = test::tiny_llama();
  config.untie_embeddings_and_output_weights = true;
  config.mtp_num_layers = 1;
  config.embedding_init_method_std = 0.5;
  MetaModelContext meta;
  ModelContext context = meta.context(config);
  context.final_norm_rank = 1;
  GPTModel last(context, {.first_layer = 2, .end_layer = 2, .has_embedding = false, .has_output = true}, nullptr);
  i64 copies = 0;
  last.visit([&](const Param& param, int) {
    const bool is_copy = param.name == "embedding.word_embeddings.weight";
    copies += is_copy;
    EXPECT_EQ(param.init_std == 0.5, is_copy) << param.name;
  });
  EXPECT_EQ(copies, 1);
}

TEST(MupTest, RejectsLayersWithoutRules) {
  const auto conflicts = [](ModelConfig config) {
    config.mup = {.is_used = true, .base_hidden_size = 8};
    return config.conflicts();
  };
  EXPECT_THAT(conflicts(test::tiny_llama()), ElementsAre());
  EXPECT_THAT(conflicts(test::tiny_latent_models().first),
              ElementsAre(HasSubstr("model.use_mup: has no rules for multi_latent_attention")));
  EXPECT_THAT(conflicts(test::tiny_delta_net()),
              ElementsAre(HasSubstr("model.use_mup: has no rules for Mamba-2, Gated DeltaNet")));
  EXPECT_THAT(conflicts(test::tiny_nemotron()), ElementsAre(HasSubstr("moe_latent_size"), HasSubstr("Mamba-2")));
  ModelConfig scaled = test::tiny_llama();
  scaled.query_pre_attn_scalar = 4;
  EXPECT_THAT(conflicts(scaled), ElementsAre(HasSubstr("model.query_pre_attn_scalar: with use_mup")));
  ModelConfig unused = test::tiny_llama();
  unused.mup = {.base_hidden_size = 8, .output_mult = 2, .base_head_dim = 3, .attn_scale_power = 0.5};
  EXPECT_EQ(unused.conflicts().size(), 4U);
}

}  // namespace
}  // namespace mcpp
