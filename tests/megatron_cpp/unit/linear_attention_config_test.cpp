// config.json of model types with Gated DeltaNet.
#include <gtest/gtest.h>

#include <functional>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "megatron_cpp/huggingface/huggingface_config.h"
#include "model/config/block_spec.h"
#include "tests/support/build.h"
#include "tests/support/errors.h"

namespace mcpp::test::linear_attention_config_test {
namespace {

std::string config_of(const std::string& model) {
  return read_text_file(source_folder() / "tests/golden/families" / model / "config.json");
}
ModelConfig model_of(const std::string& model) {
  return parse_huggingface_config(config_of(model), "config.json");
}
std::string config_error(const std::string& model, const std::function<void(nlohmann::json&)>& change) {
  auto json = nlohmann::json::parse(config_of(model));
  change(json);
  return error_of([&] { parse_huggingface_config(json.dump(), "config.json"); });
}

TEST(LinearAttentionConfigTest, RejectsUnsupportedKeysOfQwen3NextByName) {
  using Json = nlohmann::json;
  const auto error = [](const std::function<void(Json&)>& change) { return config_error("qwen3_next", change); };
  EXPECT_EQ(error([](Json&) {}), "");
  EXPECT_CONTAINS(error([](Json& j) { j["attention_bias"] = true; }),
                  "'attention_bias' is true, which is not supported; allowed: false");
  EXPECT_CONTAINS(error([](Json& j) { j["attn_output_gate"] = false; }), "'attn_output_gate' is false");
  EXPECT_CONTAINS(error([](Json& j) { j["layer_types"][1] = "sliding_attention"; }),
                  "'layer_types' is \"sliding_attention\", which is not supported; allowed: linear_attention");
  EXPECT_CONTAINS(error([](Json& j) { j["num_hidden_layers"] = 3; }), "'layer_types' is of 4 layers");
  EXPECT_CONTAINS(error([](Json& j) { j["num_hidden_layers"] = i64{1} << 39; }), "num_layers");
  EXPECT_CONTAINS(error([](Json& j) { j["linear_num_value_heads"] = 3; }),
                  "model.linear_num_value_heads: 3 is not a multiple of linear_num_key_heads = 2");
  EXPECT_CONTAINS(error([](Json& j) { j["linear_num_key_heads"] = 0; }), "'linear_num_key_heads'");
  EXPECT_CONTAINS(error([](Json& j) { j["linear_conv_kernel_dim"] = 9; }), "model.linear_conv_kernel_dim would be 9");
  EXPECT_CONTAINS(error([](Json& j) { j["hidden_act"] = "relu"; }), "'hidden_act' is relu");
  EXPECT_CONTAINS(error([](Json& j) { j["num_experts"] = 0; }), "'num_experts'");
  EXPECT_CONTAINS(error([](Json& j) { j["rope_parameters"]["partial_rotary_factor"] = 0.75; }),
                  "'partial_rotary_factor' is 0.75, which is not supported; allowed: a fraction of an even number of");
}

/// Missing keys get transformers' defaults, which describe the published model.
TEST(LinearAttentionConfigTest, Qwen3NextHasDefaultsOfTransformers) {
  const nlohmann::json json{{"model_type", "qwen3_next"}, {"vocab_size", 151936},   {"hidden_size", 2048},
                            {"intermediate_size", 5120},  {"num_hidden_layers", 8}, {"num_attention_heads", 16},
                            {"rope_theta", 10000000}};
  const ModelConfig m = parse_huggingface_config(json.dump(), "config.json");
  EXPECT_EQ(m.recurrent.linear_attention_freq, std::vector<i64>{4});
  EXPECT_EQ(m.recurrent.linear_attention_shape(LinearAttentionType::GatedDeltaNet),
            (ScanShape{ScanRule::DeltaRule, 16, 2, 128, 128}));
  EXPECT_EQ(m.recurrent.linear_conv_kernel_dim, 4);
  EXPECT_EQ(m.rotary_percent, 0.25);
  EXPECT_EQ(m.rotary_base, 1e7);
  EXPECT_EQ(m.head_dim(), 256);
  EXPECT_EQ(m.query_groups(3), 2);
  EXPECT_EQ(m.moe.num_experts, 512);
  EXPECT_EQ(m.moe.router_topk, 10);
  EXPECT_EQ(m.moe_ffn(), 512);
  EXPECT_EQ(m.moe.shared_expert_intermediate_size, 512);
  EXPECT_FALSE(m.moe.router_pre_softmax);
  EXPECT_TRUE(m.moe.shared_expert_gate && m.apply_layernorm_1p && m.qk_layernorm);
  EXPECT_TRUE(block_spec(m, 3).attention()->has_output_gate);
  EXPECT_EQ(m.max_positions(), 32768);
  EXPECT_EQ(exporting_family(m).model_type, "qwen3_next");
  const auto frequency = [&](i64 layers, const std::vector<std::string>& types) {
    nlohmann::json changed = json;
    changed["num_hidden_layers"] = layers;
    changed["layer_types"] = types;
    return parse_huggingface_config(changed.dump(), "config.json").recurrent.linear_attention_freq;
  };
  EXPECT_EQ(frequency(1, {"linear_attention"}), std::vector<i64>{2});
  EXPECT_EQ(frequency(2, {"linear_attention", "linear_attention"}), std::vector<i64>{3});
  EXPECT_EQ(frequency(2, {"full_attention", "linear_attention"}), (std::vector<i64>{0, 1}));
  EXPECT_EQ(frequency(2, {"full_attention", "full_attention"}), std::vector<i64>{});
}

TEST(LinearAttentionConfigTest, NamesKeysThatQwen3NextCannotExpress) {
  const ModelConfig qwen = model_of("qwen3_next");
  const auto error = [&](const char* type, const std::function<void(ModelConfig&)>& change) {
    ModelConfig m = qwen;
    change(m);
    return error_of([&] { exporting_family(m, type); });
  };
  EXPECT_EQ(error("qwen3_next", [](ModelConfig&) {}), "");
  EXPECT_CONTAINS(error("qwen3_moe", [](ModelConfig&) {}), "different values of model.linear_attention_freq");
  EXPECT_CONTAINS(error("qwen3_5_text", [](ModelConfig&) {}), "different values of model.num_experts");
  EXPECT_CONTAINS(error("qwen3_5_moe_text", [](ModelConfig&) {}),
                  "different values of model.ffn_hidden_size, model.moe_layer_freq");
  EXPECT_CONTAINS(error("qwen3_next", [](ModelConfig& m) { m.attention_output_gate = {}; }),
                  "model.attention_output_gate");
  EXPECT_CONTAINS(error("qwen3_next", [](ModelConfig& m) { m.apply_layernorm_1p = false; }),
                  "model.apply_layernorm_1p");
  EXPECT_CONTAINS(error("qwen3_next", [](ModelConfig& m) { m.add_qkv_bias = true; }), "model.add_qkv_bias");
  EXPECT_CONTAINS(error("qwen3_next", [](ModelConfig& m) { m.moe.shared_expert_gate = false; }),
                  "model.moe_shared_expert_gate");
  EXPECT_CONTAINS(error("", [](ModelConfig& m) { m.rotary_percent = 0.25; }), "model.rotary_percent");
}

TEST(LinearAttentionConfigTest, ReadsOlmoHybridLikeTransformers) {
  using Json = nlohmann::json;
  const auto parse = [](const std::function<void(Json&)>& change) {
    auto json = Json::parse(config_of("olmo_hybrid"));
    change(json);
    return parse_huggingface_config(json.dump(), "config.json");
  };
  const auto error = [](const std::function<void(Json&)>& change) { return config_error("olmo_hybrid", change); };
  const ModelConfig given = parse([](Json&) {});
  EXPECT_EQ(given.position_embedding_type, PositionEmbedding::None);
  EXPECT_EQ(given.recurrent.linear_norm_epsilon, 1e-5);
  EXPECT_TRUE(given.recurrent.linear_allow_neg_eigval);
  EXPECT_EQ(block_spec(given, 0).norm_position, NormPosition::Pre);
  EXPECT_EQ(block_spec(given, 1).norm_position, NormPosition::Post);
  const ModelConfig defaults = parse([](Json& j) {
    for (const char* key : {"layer_types", "rope_parameters", "linear_num_key_heads", "linear_num_value_heads",
                            "linear_key_head_dim", "linear_value_head_dim", "linear_allow_neg_eigval"})
      j.erase(key);
    j["num_hidden_layers"] = 8, j["hidden_size"] = 3840, j["num_attention_heads"] = 30;
  });
  EXPECT_EQ(defaults.recurrent.linear_attention_shape(LinearAttentionType::GatedDeltaNet),
            (ScanShape{ScanRule::DeltaRule, 30, 1, 96, 192, true}));
  EXPECT_EQ(defaults.recurrent.linear_attention_freq, std::vector<i64>{4});
  EXPECT_EQ(defaults.post_norm_freq, std::vector<i64>{4});
  EXPECT_EQ(defaults.position_embedding_type, PositionEmbedding::Rope);
  EXPECT_EQ(defaults.rotary_base, 10000);
  // Without layer_types, the last of three layers has attention.
  EXPECT_EQ(parse([](Json& j) { j.erase("layer_types"); }).post_norm_freq, std::vector<i64>{3});
  EXPECT_EQ(parse([](Json& j) { j["rope_parameters"] = nullptr, j["rope_theta"] = nullptr; }).position_embedding_type,
            PositionEmbedding::None);
  EXPECT_EQ(parse([](Json& j) { j["rope_parameters"] = nullptr, j["rope_theta"] = 500; }).rotary_base, 500);
  EXPECT_CONTAINS(error([](Json& j) { j["layer_types"] = std::vector<std::string>(3, "linear_attention"); }),
                  "'layer_types' is linear_attention in all layers, which is not supported; allowed: at least one");
  EXPECT_CONTAINS(error([](Json& j) { j["layer_types"] = std::vector<std::string>(3, "full_attention"); }),
                  "'layer_types' is full_attention in all layers");
  EXPECT_CONTAINS(error([](Json& j) { j["linear_allow_neg_eigval"] = 1; }), "'linear_allow_neg_eigval'");
  EXPECT_CONTAINS(error([](Json& j) { j["linear_key_head_dim"] = nullptr, j["hidden_size"] = 2; }),
                  "model.linear_key_head_dim would be 0");
}

TEST(LinearAttentionConfigTest, NamesKeysThatOlmoHybridCannotExpress) {
  const ModelConfig olmo = model_of("olmo_hybrid");
  const auto error = [&](const std::function<void(ModelConfig&)>& change) {
    ModelConfig m = olmo;
    change(m);
    return error_of([&] { exporting_family(m, "olmo_hybrid"); });
  };
  EXPECT_EQ(error([](ModelConfig&) {}), "");
  EXPECT_CONTAINS(error([](ModelConfig& m) { m.recurrent = {}; }), "model.linear_attention_freq");
  EXPECT_CONTAINS(error([](ModelConfig& m) { m.recurrent.linear_attention_freq = {4}; }),
                  "model.linear_attention_freq");
  EXPECT_CONTAINS(error([](ModelConfig& m) { m.post_norm_freq = {}; }), "model.post_norm_freq");
  EXPECT_CONTAINS(error([](ModelConfig& m) { m.post_norm_freq = {}, m.norm_position = NormPosition::Post; }),
                  "model.norm_position");
  EXPECT_CONTAINS(error([](ModelConfig& m) { m.recurrent.linear_norm_epsilon = 0; }), "model.linear_norm_epsilon");
  EXPECT_EQ(error([](ModelConfig& m) { m.recurrent.linear_norm_epsilon = 0, m.norm_epsilon = 1e-5; }), "");
}

}  // namespace
}  // namespace mcpp::test::linear_attention_config_test
