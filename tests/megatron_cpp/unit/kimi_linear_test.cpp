// config.json of kimi_linear: published files, files of transformers, and models that it cannot express.
#include <gtest/gtest.h>

#include <functional>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "megatron_cpp/config/config.h"
#include "megatron_cpp/huggingface/huggingface_config.h"
#include "model/config/block_spec.h"
#include "model/flops.h"
#include "tests/support/build.h"
#include "tests/support/errors.h"

namespace mcpp::test::kimi_linear_test {
namespace {

using Json = nlohmann::json;

/// config.json of Kimi-Linear-48B-A3B, without keys that do not describe the model.
Json published() {
  return Json::parse(R"({
    "model_type": "kimi_linear", "first_k_dense_replace": 1, "head_dim": 72, "hidden_act": "silu", "hidden_size": 2304,
    "initializer_range": 0.02, "intermediate_size": 9216, "kv_lora_rank": 512,
    "linear_attn_config": {
      "full_attn_layers": [4, 8, 12, 16, 20, 24, 27], "head_dim": 128, "num_heads": 32, "short_conv_kernel_size": 4,
      "kda_layers": [1, 2, 3, 5, 6, 7, 9, 10, 11, 13, 14, 15, 17, 18, 19, 21, 22, 23, 25, 26]
    },
    "mla_use_nope": true, "model_max_length": 1048576, "moe_intermediate_size": 1024, "moe_layer_freq": 1,
    "moe_renormalize": true, "moe_router_activation_func": "sigmoid", "num_attention_heads": 32, "num_expert_group": 1,
    "num_experts": 256, "num_experts_per_token": 8, "num_hidden_layers": 27, "num_key_value_heads": 32,
    "num_nextn_predict_layers": 0, "num_shared_experts": 1, "q_lora_rank": null, "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64, "rms_norm_eps": 1e-05, "rope_scaling": null, "rope_theta": 10000.0,
    "routed_scaling_factor": 2.446, "tie_word_embeddings": false, "topk_group": 1, "use_cache": true,
    "use_grouped_topk": true, "v_head_dim": 128, "vocab_size": 163840
  })");
}

ModelConfig parse(const Json& json) {
  return parse_huggingface_config(json.dump(), "config.json");
}
std::string error(const std::function<void(Json&)>& change) {
  Json json = published();
  change(json);
  return error_of([&] { parse(json); });
}

TEST(KimiLinearTest, ReadsPublishedConfiguration) {
  const ModelConfig m = parse(published());
  EXPECT_EQ(m.position_embedding_type, PositionEmbedding::None);
  EXPECT_EQ(m.max_positions(), 1048576);
  EXPECT_EQ(m.recurrent.linear_conv_kernel_dim, 4);
  EXPECT_EQ(block_spec(m, 0).recurrent()->shape, (ScanShape{ScanRule::ChannelDeltaRule, 32, 1, 128, 128}));
  EXPECT_TRUE(block_spec(m, 0).mlp() && block_spec(m, 1).moe() && block_spec(m, 25).recurrent());
  for (const i64 layer : {3, 23, 26}) EXPECT_TRUE(block_spec(m, layer).latent_attention()) << layer;
  EXPECT_EQ(m.mla.latent_norm_epsilon, 1e-6);
  EXPECT_EQ(m.moe.router_topk, 8);
  EXPECT_EQ(m.moe.router_topk_scaling_factor, 2.446);
  EXPECT_EQ(m.moe.shared_expert_intermediate_size, 1024);
  EXPECT_TRUE(m.moe.router_enable_expert_bias);
  const i64 expert_biases = 26 * 256;
  EXPECT_EQ(count_parameters(m).total() + expert_biases, 49122681728);
  EXPECT_EQ(exporting_family(m).model_type, "kimi_linear");
}

TEST(KimiLinearTest, ShippedConfigurationEqualsPublishedOne) {
  const ModelConfig ours = load_config(source_folder() / "configs/kimi_linear_48b_a3b.toml").model;
  const Json written =
      Json::parse(huggingface_config(ours, exporting_family(ours, "kimi_linear"), DType::BF16, SpecialTokens()));
  const Json expected = published();
  for (const auto& [key, value] : expected.items()) {
    if (key == "head_dim" || key == "rope_theta" || key == "rope_scaling") continue;  // not used
    EXPECT_EQ(written.value(key, Json()), value) << key;
  }
}

TEST(KimiLinearTest, ReadsKeysOfTransformers) {
  const std::string golden = read_text_file(source_folder() / "tests/golden/families/kimi_linear/config.json");
  const ModelConfig m = parse_huggingface_config(golden, "config.json");
  EXPECT_EQ(m.recurrent.linear_attention_freq, (std::vector<i64>{1, 0, 1, 1}));
  EXPECT_EQ(m.recurrent.linear_num_value_heads, 3);
  EXPECT_EQ(m.recurrent.linear_value_head_dim, 6);
  EXPECT_EQ(m.moe.router_num_groups, 4);
  Json json = published();
  for (const auto& [key, name] : {std::pair{"model_max_length", "max_position_embeddings"},
                                  {"num_experts_per_token", "num_experts_per_tok"},
                                  {"num_shared_experts", "n_shared_experts"},
                                  {"moe_renormalize", "norm_topk_prob"},
                                  {"num_expert_group", "n_group"}}) {
    json[name] = json[key];
    json.erase(key);
  }
  EXPECT_EQ(parse(json).max_positions(), 1048576);
  json["n_shared_experts"] = 2;
  EXPECT_EQ(parse(json).moe.shared_expert_intermediate_size, 2048);
}

TEST(KimiLinearTest, RejectsUnsupportedKeysByName) {
  EXPECT_EQ(error([](Json&) {}), "");
  EXPECT_CONTAINS(error([](Json& j) { j.erase("linear_attn_config"); }),
                  "'linear_attn_config' is without the lists kda_layers and full_attn_layers");
  EXPECT_CONTAINS(error([](Json& j) { j["linear_attn_config"]["kda_layers"][0] = 4; }),
                  "'kda_layers' is a list that repeats layer 4");
  EXPECT_CONTAINS(error([](Json& j) { j["linear_attn_config"]["kda_layers"][0] = 0; }), "'kda_layers' is 0");
  EXPECT_CONTAINS(error([](Json& j) { j["linear_attn_config"]["kda_layers"][0] = 28; }), "'kda_layers' is 28");
  EXPECT_CONTAINS(error([](Json& j) { j["linear_attn_config"]["kda_layers"][0] = "1"; }), "'kda_layers' is \"1\"");
  EXPECT_CONTAINS(error([](Json& j) { j["linear_attn_config"]["kda_layers"].erase(0); }),
                  "'kda_layers' is a list without layer 1");
  EXPECT_CONTAINS(error([](Json& j) { j["linear_attn_config"]["gate_lower_bound"] = -5.0; }), "'gate_lower_bound'");
  EXPECT_CONTAINS(error([](Json& j) { j["linear_attn_config"]["use_full_rank_gate"] = true; }),
                  "'use_full_rank_gate' is true");
  EXPECT_CONTAINS(error([](Json& j) { j["linear_attn_config"]["short_conv_kernel_size"] = 9; }),
                  "model.linear_conv_kernel_dim would be 9");
  EXPECT_CONTAINS(error([](Json& j) { j["mla_use_nope"] = false; }), "'mla_use_nope' is false");
  EXPECT_CONTAINS(error([](Json& j) { j["mla_use_output_gate"] = true; }), "'mla_use_output_gate' is true");
  EXPECT_CONTAINS(error([](Json& j) { j["attn_res_block_size"] = 4; }), "'attn_res_block_size' is 4");
  EXPECT_CONTAINS(error([](Json& j) { j["hidden_act"] = "situ"; }), "'hidden_act' is situ");
  EXPECT_CONTAINS(error([](Json& j) { j["moe_router_activation_func"] = "softmax"; }),
                  "'moe_router_activation_func' is softmax");
  EXPECT_CONTAINS(error([](Json& j) { j["moe_renormalize"] = false; }), "'moe_renormalize' is false");
  EXPECT_CONTAINS(error([](Json& j) { j["num_experts"] = 0; }), "'num_experts'");
  EXPECT_CONTAINS(error([](Json& j) { j["num_hidden_layers"] = i64{1} << 39; }), "num_layers");
}

TEST(KimiLinearTest, ExportNamesUnsupportedKeys) {
  const auto problem = [](const std::function<void(ModelConfig&)>& change) {
    ModelConfig m = parse(published());
    change(m);
    return error_of([&] { exporting_family(m, "kimi_linear"); });
  };
  EXPECT_EQ(problem([](ModelConfig&) {}), "");
  EXPECT_CONTAINS(
      problem([](ModelConfig& m) { m.recurrent.linear_attention_type = LinearAttentionType::GatedDeltaNet; }),
      "model.linear_attention_type");
  EXPECT_CONTAINS(problem([](ModelConfig& m) { m.recurrent.linear_num_value_heads = 64; }),
                  "model.linear_num_value_heads");
  EXPECT_CONTAINS(problem([](ModelConfig& m) { m.recurrent.linear_value_head_dim = 64; }),
                  "model.linear_value_head_dim");
  EXPECT_CONTAINS(problem([](ModelConfig& m) { m.recurrent.linear_allow_neg_eigval = true; }),
                  "model.linear_allow_neg_eigval");
  EXPECT_CONTAINS(problem([](ModelConfig& m) { m.position_embedding_type = PositionEmbedding::Rope; }),
                  "model.position_embedding_type");
  EXPECT_CONTAINS(problem([](ModelConfig& m) { m.mla.is_used = false; }), "model.multi_latent_attention");
  ModelConfig other = parse(published());
  EXPECT_CONTAINS(error_of([&] { exporting_family(other, "qwen3_next"); }), "different values of");
  EXPECT_CONTAINS(error_of([&] { exporting_family(other, "deepseek_v3"); }), "model.linear_attention_freq");
}

}  // namespace
}  // namespace mcpp::test::kimi_linear_test
