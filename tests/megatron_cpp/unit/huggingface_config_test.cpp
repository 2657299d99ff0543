// Conversion of config.json to and from our configuration.
#include "megatron_cpp/huggingface/huggingface_config.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <nlohmann/json.hpp>
#include <set>

#include "base/file.h"
#include "megatron_cpp/huggingface/weight_map.h"
#include "model/config/block_spec.h"
#include "tests/support/build.h"
#include "tests/support/errors.h"

namespace mcpp {
namespace {

using test::error_of;

Path golden(const std::string& model) {
  return test::source_folder() / "tests/golden" / model;
}
ModelConfig model_of(const Path& folder) {
  return parse_huggingface_config(read_text_file(folder / "config.json"), "config.json");
}
std::string config_error(const std::string& model, const std::function<void(nlohmann::json&)>& change) {
  auto json = nlohmann::json::parse(read_text_file(golden(model) / "config.json"));
  change(json);
  return error_of([&] { parse_huggingface_config(json.dump(), "config.json"); });
}

TEST(HuggingfaceConfigTest, ReadsConfigurations) {
  const ModelConfig gpt2 = model_of(golden("gpt2"));
  EXPECT_EQ(gpt2.num_layers, 4);
  EXPECT_EQ(gpt2.hidden_size, 48);
  EXPECT_EQ(gpt2.ffn(0), 192);
  EXPECT_EQ(gpt2.num_attention_heads.first(), 4);
  EXPECT_EQ(gpt2.max_positions(), 32);
  EXPECT_EQ(gpt2.vocab_size, 128);
  EXPECT_EQ(gpt2.activation_func, ActivationFunction::Gelu);
  EXPECT_EQ(gpt2.hidden_dropout, 0);
  EXPECT_FALSE(gpt2.untie_embeddings_and_output_weights);

  const ModelConfig llama = model_of(golden("llama"));
  EXPECT_EQ(llama.query_groups(0), 4);
  EXPECT_EQ(llama.head_dim(), 8);
  EXPECT_EQ(llama.ffn(0), 160);
  EXPECT_EQ(llama.rotary_base, 10000);
  EXPECT_EQ(llama.position_embedding_type, PositionEmbedding::Rope);
  EXPECT_EQ(llama.normalization, Normalization::RMSNorm);
  EXPECT_FALSE(llama.add_bias_linear);
  EXPECT_TRUE(llama.untie_embeddings_and_output_weights);
}

TEST(HuggingfaceConfigTest, RejectsUnsupportedKeysByName) {
  using Json = nlohmann::json;
  EXPECT_CONTAINS(config_error("gpt2", [](Json& j) { j["model_type"] = "opt"; }), "'model_type' is opt");
  EXPECT_CONTAINS(config_error("llama", [](Json& j) { j["model_type"] = "mamba"; }), "'model_type' is mamba");
  EXPECT_CONTAINS(config_error("gpt2", [](Json& j) { j["activation_function"] = "relu"; }), "'activation_function'");
  EXPECT_CONTAINS(config_error("gpt2", [](Json& j) { j["scale_attn_weights"] = false; }), "'scale_attn_weights'");
  EXPECT_CONTAINS(config_error("gpt2", [](Json& j) { j["scale_attn_by_inverse_layer_idx"] = true; }), "inverse_layer");
  EXPECT_CONTAINS(config_error("gpt2", [](Json& j) { j["embd_pdrop"] = 0.5; }), "'embd_pdrop'");
  EXPECT_CONTAINS(config_error("gpt2", [](Json& j) { j["n_embd"] = 50; }), "num_attention_heads");
  EXPECT_CONTAINS(config_error("gpt2", [](Json& j) { j["n_layer"] = -1; }), "'n_layer'");
  EXPECT_CONTAINS(config_error("gpt2", [](Json& j) { j["layer_norm_epsilon"] = 0; }), "norm_epsilon");
  EXPECT_CONTAINS(config_error("gpt2", [](Json& j) { j.erase("n_head"); }), "'n_head' is missing");
  EXPECT_CONTAINS(config_error("llama", [](Json& j) { j["hidden_act"] = "gelu"; }), "'hidden_act' is gelu");
  const auto rope_error = [&](const Json& rope) {
    return config_error("llama", [&](Json& j) { j["rope_scaling"] = rope; });
  };
  EXPECT_CONTAINS(rope_error({{"rope_type", "dynamic"}, {"factor", 2}}),
                  "'rope_scaling': 'rope_type' is dynamic, whose frequencies depend on the length of the sequence");
  EXPECT_CONTAINS(rope_error({{"rope_type", "longrope"}}), "allowed: default, linear, llama3, yarn");
  EXPECT_CONTAINS(rope_error({{"rope_type", "none"}}), "'rope_type' is none");
  EXPECT_CONTAINS(rope_error({{"type", "linear"}}), "'factor' is missing");
  EXPECT_CONTAINS(rope_error({{"type", "linear"}, {"factor", 0.5}}), "model.rope_scaling_factor would be 0.5");
  EXPECT_CONTAINS(rope_error({{"rope_type", "llama3"}, {"factor", 8}, {"low_freq_factor", 4}, {"high_freq_factor", 1}}),
                  "rope_scaling_high_freq_factor");
  EXPECT_CONTAINS(rope_error({{"full_attention", {{"rope_type", "default"}}}}), "one RoPE for all layers");
  EXPECT_CONTAINS(config_error("llama", [](Json& j) { j["sliding_window"] = 64; }), "model_type mistral has windows");
  const auto mistral_error = [&](const Json& types, const Json& window) {
    return config_error(
        "llama", [&](Json& j) { j["model_type"] = "mistral", j["layer_types"] = types, j["sliding_window"] = window; });
  };
  EXPECT_CONTAINS(mistral_error({"sliding_attention"}, 8), "'layer_types' is of 1 layers");
  EXPECT_CONTAINS(mistral_error({"linear_attention"}, 8), "allowed: sliding_attention, full_attention");
  EXPECT_CONTAINS(
      mistral_error(Json::array({"sliding_attention", "full_attention", "full_attention", "full_attention"}), nullptr),
      "'sliding_window' is null");
  EXPECT_CONTAINS(config_error("llama", [](Json& j) { j["num_key_value_heads"] = 3; }), "num_query_groups");
  EXPECT_EQ(config_error("llama", [](Json& j) { j["rope_scaling"] = nullptr; }), "");
}

TEST(HuggingfaceConfigTest, RejectsUnsupportedGemmaKeysByName) {
  using Json = nlohmann::json;
  const auto gemma_error = [&](const char* type, const std::function<void(Json&)>& change) {
    return config_error("llama", [&](Json& j) {
      j["model_type"] = type;
      change(j);
    });
  };
  EXPECT_EQ(gemma_error("gemma2", [](Json&) {}), "");
  EXPECT_CONTAINS(gemma_error("gemma2", [](Json& j) { j["hidden_activation"] = "gelu"; }),
                  "'hidden_activation' is gelu, which is not supported; allowed: gelu_pytorch_tanh");
  EXPECT_CONTAINS(gemma_error("gemma3_text", [](Json& j) { j["use_bidirectional_attention"] = true; }),
                  "'use_bidirectional_attention' is true");
  EXPECT_CONTAINS(gemma_error("gemma2", [](Json& j) { j["query_pre_attn_scalar"] = 0; }), "'query_pre_attn_scalar'");
  EXPECT_CONTAINS(gemma_error("gemma2", [](Json& j) { j["attn_logit_softcapping"] = -1; }),
                  "model.attn_logit_softcapping would be -1");
  EXPECT_CONTAINS(gemma_error("gemma2", [](Json& j) { j["sliding_window_pattern"] = 0; }), "'sliding_window_pattern'");
  EXPECT_CONTAINS(gemma_error("gemma3_text", [](Json& j) { j["rope_local_base_freq"] = 1; }), "rope_local_base_freq");
  const Json scaled{{"rope_type", "linear"}, {"factor", 2}, {"rope_theta", 10000}};
  const auto rope_error = [&](const char* type) {
    return gemma_error(type, [&](Json& j) { j["rope_parameters"] = {{"sliding_attention", scaled}}; });
  };
  EXPECT_CONTAINS(rope_error("gemma3_text"), "'sliding_attention': 'rope_type' is linear");
  EXPECT_CONTAINS(rope_error("gemma2"), "one RoPE for all layers");
}

/// Missing keys get transformers' defaults, which describe the smallest models.
TEST(HuggingfaceConfigTest, GemmaHasDefaultsOfTransformers) {
  const auto model_of_type = [&](const char* type) {
    auto json = nlohmann::json::parse(read_text_file(golden("llama") / "config.json"));  // a model of four layers
    json["model_type"] = type;
    for (const char* key : {"rope_theta", "rope_parameters", "rope_scaling"}) json.erase(key);
    return parse_huggingface_config(json.dump(), "config.json");
  };
  const ModelConfig second = model_of_type("gemma2"), third = model_of_type("gemma3_text");
  for (const ModelConfig& m : {second, third}) {
    EXPECT_EQ(m.activation_func, ActivationFunction::GeGLU);
    EXPECT_TRUE(m.apply_layernorm_1p);
    EXPECT_EQ(m.norm_position, NormPosition::Both);
    EXPECT_EQ(m.query_pre_attn_scalar, 256);
    EXPECT_EQ(m.embedding_multiplier, std::sqrt(static_cast<double>(m.hidden_size)));
    EXPECT_EQ(block_spec(m, 0).attention()->window, 4096);
  }
  EXPECT_EQ(block_spec(second, 1).attention()->window, 0);
  EXPECT_EQ(second.attn_logit_softcapping, 50);
  EXPECT_EQ(second.final_logit_softcapping, 30);
  EXPECT_EQ(second.rotary_base, 10000);
  EXPECT_EQ(block_spec(third, 3).attention()->window, 4096) << "the sixth is the first without";
  EXPECT_EQ(third.final_logit_softcapping, 0);
  EXPECT_TRUE(third.qk_layernorm);
  EXPECT_EQ(third.rotary_base, 1e6);
  EXPECT_EQ(third.rope_local_base_freq, 10000);
}

TEST(HuggingfaceConfigTest, RejectsUnsupportedRouting) {
  using Json = nlohmann::json;
  const auto error = [&](const std::function<void(Json&)>& change) {
    return config_error("llama", [&](Json& j) {
      j.update({{"model_type", "dots1"},
                {"n_routed_experts", 8},
                {"num_experts_per_tok", 4},
                {"n_shared_experts", 1},
                {"norm_topk_prob", true},
                {"sliding_window", nullptr}});
      change(j);
    });
  };
  EXPECT_EQ(error([](Json&) {}), "");
  EXPECT_EQ(error([](Json& j) { j["n_group"] = 4, j["topk_group"] = 2; }), "");
  EXPECT_EQ(error([](Json& j) { j["n_group"] = 4, j["topk_group"] = 3; }), "");
  EXPECT_CONTAINS(error([](Json& j) { j["n_group"] = 4, j["topk_group"] = 5; }), "model.moe_router_group_topk: 5 of 4");
  EXPECT_CONTAINS(error([](Json& j) { j["norm_topk_prob"] = false; }), "'norm_topk_prob' is false");
  EXPECT_CONTAINS(error([](Json& j) { j["num_experts_per_tok"] = 1; }), "'norm_topk_prob' is true");
  EXPECT_CONTAINS(error([](Json& j) { j["routed_scaling_factor"] = 0; }), "'routed_scaling_factor' is 0");
  EXPECT_CONTAINS(error([](Json& j) { j.erase("n_shared_experts"); }), "'n_shared_experts' is missing");
  EXPECT_CONTAINS(error([](Json& j) { j["n_shared_experts"] = i64{1} << 39; }), "'n_shared_experts'");
  EXPECT_CONTAINS(error([](Json& j) { j["num_hidden_layers"] = i64{1} << 39; }), "num_layers");
}

TEST(HuggingfaceConfigTest, ReadsDeepSeekConfigurations) {
  using Json = nlohmann::json;
  const auto parse = [](const char* family, const std::function<void(Json&)>& change) {
    Json json = Json::parse(read_text_file(test::source_folder() / "tests/golden/families" / family / "config.json"));
    change(json);
    return parse_huggingface_config(json.dump(), "config.json");
  };
  const auto error = [&](const char* family, const std::function<void(Json&)>& change) {
    return test::error_of([&] { parse(family, change); });
  };
  const ModelConfig v2 = parse("deepseek_v2", [](Json&) {}), v3 = parse("deepseek_v3", [](Json&) {});
  EXPECT_TRUE(v2.moe.router_pre_softmax);
  EXPECT_EQ(v2.moe.router_group_score_topk, 1);
  EXPECT_EQ(v2.mla.latent_norm_epsilon, 0) << "equal to that of the other norms";
  EXPECT_EQ(v3.moe.router_score_function, RouterScore::Sigmoid);
  EXPECT_EQ(v3.moe.router_group_score_topk, 2);
  EXPECT_EQ(v3.moe.layer_freq, (std::vector<i64>{0, 0, 1, 1}));
  EXPECT_EQ(v3.mla.latent_norm_epsilon, 1e-6);
  EXPECT_EQ(parse("deepseek_v2_lite", [](Json&) {}).mla.q_lora_rank, 0);
  EXPECT_EQ(parse("deepseek_v3", [](Json& j) { j.erase("q_lora_rank"); }).mla.q_lora_rank, 1536);
  EXPECT_EQ(parse("deepseek_v3", [](Json& j) { j["model_type"] = "kimi_k2"; }).moe.num_experts, v3.moe.num_experts);
  EXPECT_EQ(exporting_family(v3).model_type, "deepseek_v3");
  EXPECT_CONTAINS(error("deepseek_v3", [](Json& j) { j["num_key_value_heads"] = 1; }),
                  "'num_key_value_heads' is 1, which is not supported; allowed: equal to num_attention_heads");
  EXPECT_CONTAINS(error("deepseek_v3", [](Json& j) { j["rope_interleave"] = false; }), "'rope_interleave' is false");
  EXPECT_CONTAINS(error("deepseek_v3", [](Json& j) { j["attention_bias"] = true; }), "'attention_bias' is true");
  EXPECT_CONTAINS(error("deepseek_v3", [](Json& j) { j["norm_topk_prob"] = false; }), "'norm_topk_prob' is false");
  EXPECT_CONTAINS(error("deepseek_v3", [](Json& j) { j["qk_rope_head_dim"] = 3; }),
                  "model.qk_pos_emb_head_dim: with multi_latent_attention must be even");
  EXPECT_CONTAINS(error("deepseek_v2", [](Json& j) { j["topk_method"] = "noaux_tc"; }), "'topk_method' is noaux_tc");
  EXPECT_CONTAINS(error("deepseek_v2", [](Json& j) { j["norm_topk_prob"] = true; }), "'norm_topk_prob' is true");
  EXPECT_CONTAINS(error("glm4_moe_lite", [](Json& j) { j["mlp_layer_types"] = {"dense"}; }),
                  "'mlp_layer_types' is of 1 layers, which is not supported; allowed: one for each of");
}

TEST(HuggingfaceConfigTest, ModelsWithLatentAttentionNeedFamilyThatSupportsIt) {
  ModelConfig model = parse_huggingface_config(
      read_text_file(test::source_folder() / "tests/golden/families/deepseek_v3/config.json"), "config.json");
  EXPECT_CONTAINS(test::error_of([&] { exporting_family(model, "llama"); }),
                  "llama requires different values of model.multi_latent_attention");
  model.moe.router_enable_expert_bias = false;
  EXPECT_CONTAINS(test::error_of([&] { exporting_family(model); }),
                  "deepseek_v3 requires different values of model.moe_router_enable_expert_bias");
}

TEST(HuggingfaceConfigTest, RejectsUnsupportedKeysOfGptOssByName) {
  using Json = nlohmann::json;
  const auto error = [](const std::function<void(Json&)>& change) { return config_error("families/gpt_oss", change); };
  EXPECT_EQ(error([](Json&) {}), "");
  EXPECT_CONTAINS(error([](Json& j) { j["swiglu_alpha"] = 1; }), "'swiglu_alpha' is 1, which is not supported");
  EXPECT_CONTAINS(error([](Json& j) { j["swiglu_limit"] = 0; }), "'swiglu_limit' is 0");
  EXPECT_CONTAINS(error([](Json& j) { j["num_experts_per_tok"] = 1; }), "'num_experts_per_tok' is 1");
  EXPECT_CONTAINS(error([](Json& j) { j["num_experts_per_tok"] = 5; }), "model.moe_router_topk: 5 is more than");
}

/// Without rope_scaling, transformers scales RoPE.
TEST(HuggingfaceConfigTest, GptOssStatesUnscaledRope) {
  ModelConfig model = model_of(golden("families/gpt_oss"));
  model.rope_scaling = {};
  model.rotary_base = 5000;
  const ModelConfig again = parse_huggingface_config(huggingface_config(model, DType::F32), "config.json");
  EXPECT_EQ(again.rope_scaling.type, RopeScalingType::None);
  EXPECT_EQ(again.rotary_base, 5000);
}

/// Families are tried in order; values that one of them cannot express do not prevent an export to another.
TEST(HuggingfaceConfigTest, NamesKeysThatGptOssAndLlama4CannotExpress) {
  ModelConfig gpt_oss = model_of(golden("families/gpt_oss")), llama4 = model_of(golden("families/llama4"));
  EXPECT_EQ(exporting_family(gpt_oss).model_type, "gpt_oss");
  EXPECT_EQ(exporting_family(llama4).model_type, "llama4_text");
  const auto error = [](const ModelConfig& m, const char* type) {
    return error_of([&] { exporting_family(m, type); });
  };
  EXPECT_CONTAINS(error(gpt_oss, "llama4_text"), "llama4_text requires different values of model.moe_router_topk");
  EXPECT_CONTAINS(error(llama4, "gpt_oss"), "model.moe_router_topk, model.activation_func_clamp_value");
  gpt_oss.softmax_type = SoftmaxType::OffByOne;
  EXPECT_CONTAINS(error(gpt_oss, "gpt_oss"), "gpt_oss requires different values of model.softmax_type");
  llama4.moe.apply_probs_on_input = false;
  EXPECT_CONTAINS(error(llama4, "llama4_text"), "model.moe_apply_probs_on_input");
}

/// Missing keys get transformers' defaults, which describe the largest model.
TEST(HuggingfaceConfigTest, GptOssHasDefaultsOfTransformers) {
  auto json = nlohmann::json::parse(read_text_file(golden("families/gpt_oss") / "config.json"));
  for (const char* key : {"rope_parameters", "attention_bias", "swiglu_limit", "swiglu_alpha", "layer_types",
                          "num_local_experts", "num_experts_per_tok", "head_dim", "num_key_value_heads"})
    json.erase(key);
  json["num_attention_heads"] = 8, json["sliding_window"] = 128, json["max_position_embeddings"] = 131072;
  const ModelConfig m = parse_huggingface_config(json.dump(), "config.json");
  EXPECT_EQ(m.rope_scaling.type, RopeScalingType::Yarn);
  EXPECT_EQ(m.rope_scaling.factor, 32);
  EXPECT_EQ(m.rope_scaling.original_max_position_embeddings, 4096);
  EXPECT_FALSE(m.rope_scaling.truncate);
  EXPECT_EQ(m.rotary_base, 150000);
  EXPECT_TRUE(m.add_qkv_bias && m.add_attention_output_bias && m.add_mlp_bias && m.moe.router_add_bias);
  EXPECT_EQ(m.activation_func_clamp_value, 7);
  EXPECT_EQ(m.moe.num_experts, 128);
  EXPECT_EQ(m.moe.router_topk, 4);
  EXPECT_EQ(m.head_dim(), 64);
  EXPECT_EQ(m.query_groups(0), 8);
  EXPECT_EQ(block_spec(m, 0).attention()->window, 128);
  EXPECT_EQ(block_spec(m, 1).attention()->window, 0);
}

TEST(HuggingfaceConfigTest, ReadsLayersWithoutRopeLikeTransformers) {
  const auto model = [](const std::function<void(nlohmann::json&)>& change) {
    auto json = nlohmann::json::parse(read_text_file(golden("families/smollm3") / "config.json"));
    for (const char* key : {"no_rope_layers", "layer_types"}) json.erase(key);
    change(json);
    return parse_huggingface_config(json.dump(), "config.json");
  };
  EXPECT_EQ(model([](auto&) {}).no_rope_freq, std::vector<i64>{4});
  EXPECT_EQ(model([](auto& j) { j["no_rope_layer_interval"] = 2; }).no_rope_freq, std::vector<i64>{2});
  EXPECT_EQ(model([](auto& j) { j["no_rope_layer_interval"] = 7; }).no_rope_freq, std::vector<i64>{});
  EXPECT_EQ(model([](auto& j) { j["no_rope_layers"] = {0, 1, 1, 1, 0}; }).no_rope_freq, (std::vector<i64>{1, 0, 0, 0}));
  const ModelConfig windows = model([](auto& j) { j["no_rope_layer_interval"] = 2; });
  EXPECT_EQ(block_spec(windows, 0).attention()->window, 0);
  EXPECT_EQ(block_spec(windows, 1).attention()->window, 6);
  EXPECT_CONTAINS(config_error("families/smollm3",
                               [](auto& j) {
                                 j["no_rope_layers"] = {0, 1};
                               }),
                  "'no_rope_layers' is of 2 layers");
  EXPECT_CONTAINS(config_error("families/smollm3",
                               [](auto& j) {
                                 j["no_rope_layers"] = {0, 1, 2, 1};
                               }),
                  "'no_rope_layers' is 2");
}

TEST(HuggingfaceConfigTest, RejectsUnsupportedKeysOfLlama4ByName) {
  using Json = nlohmann::json;
  const auto error = [](const std::function<void(Json&)>& change) { return config_error("families/llama4", change); };
  EXPECT_EQ(error([](Json&) {}), "");
  EXPECT_EQ(error([](Json& j) { j["layer_types"] = nullptr, j["attention_chunk_size"] = nullptr; }), "");
  EXPECT_EQ(error([](Json& j) { j["moe_layers"] = nullptr, j["interleave_moe_layer_step"] = 1; }), "");
  EXPECT_CONTAINS(error([](Json& j) { j["num_experts_per_tok"] = 2; }), "'num_experts_per_tok' is 2");
  EXPECT_CONTAINS(error([](Json& j) { j["moe_layers"] = Json::array({4}); }), "'moe_layers' is 4");
  EXPECT_CONTAINS(error([](Json& j) { j["moe_layers"] = Json::array(); }), "'moe_layers' is empty");
  EXPECT_CONTAINS(error([](Json& j) { j["layer_types"][2] = "chunked_attention"; }),
                  "'layer_types' is \"chunked_attention\", which is not supported; allowed: chunked_attention in the "
                  "layers with RoPE");
  EXPECT_CONTAINS(error([](Json& j) { j["floor_scale"] = 0; }), "model.attn_temperature_floor_scale would be 0");
}

TEST(HuggingfaceConfigTest, TrainingOptionsDoNotPreventExport) {
  ModelConfig model = parse_huggingface_config(read_text_file(golden("mixtral") / "config.json"), "config.json");
  const Family& family = exporting_family(model, "");
  model.moe.expert_capacity_factor = 1.25;
  model.moe.pad_expert_input_to_capacity = model.moe.router_force_load_balancing = true;
  model.moe.token_drop_policy = TokenDropPolicy::Position;
  model.moe.input_jitter_eps = 0.01;
  EXPECT_EQ(&exporting_family(model, ""), &family);
  model.moe.router_pre_softmax = true;
  EXPECT_THROW(exporting_family(model, "mixtral"), Error);
}

TEST(HuggingfaceConfigTest, ConfigurationsRoundTrip) {
  for (const char* name : {"gpt2", "llama"}) {
    const ModelConfig model = model_of(golden(name));
    const std::string text = huggingface_config(model, DType::BF16, {.bos = 1, .eos = 2});
    EXPECT_EQ(huggingface_config(parse_huggingface_config(text, "x"), DType::BF16, {.bos = 1, .eos = 2}), text);
    const auto exported = nlohmann::json::parse(text);
    const auto original = nlohmann::json::parse(read_text_file(golden(name) / "config.json"));
    // Keys in both files have equal values; an absent n_inner means 4 n_embd.
    for (const auto& [key, value] : exported.items()) {
      if (original.contains(key) && !original[key].is_null() && key.find("token_id") == std::string::npos) {
        EXPECT_EQ(value, original[key]) << key;
      }
    }
    EXPECT_EQ(exported["architectures"], original["architectures"]);
    EXPECT_EQ(exported["torch_dtype"], "bfloat16");
    EXPECT_EQ(nlohmann::json::parse(huggingface_config(model, DType::F16, {}))["torch_dtype"], "float16");
    EXPECT_EQ(exported["eos_token_id"], 2);
  }
  ModelConfig odd;
  odd.normalization = Normalization::RMSNorm;
  const std::string error = error_of([&] { huggingface_config(odd, DType::F32); });
  EXPECT_CONTAINS(error, "gpt2 requires different values of model.normalization");
  EXPECT_CONTAINS(error, "model.activation_func");
}

TEST(HuggingfaceConfigTest, ReadsAttentionAndMlpBiasesSeparately) {
  for (const bool attention : {false, true}) {
    for (const bool mlp : {false, true}) {
      auto json = nlohmann::json::parse(read_text_file(golden("llama") / "config.json"));
      json["attention_bias"] = attention, json["mlp_bias"] = mlp;
      const ModelConfig model = parse_huggingface_config(json.dump(), "config.json");
      EXPECT_EQ(model.qkv_bias(), attention);
      EXPECT_EQ(model.attention_output_bias(), attention);
      EXPECT_EQ(model.mlp_bias(), mlp);
      const auto reread = nlohmann::json::parse(huggingface_config(model, DType::F32));
      EXPECT_EQ(reread["attention_bias"], attention);
      EXPECT_EQ(reread["mlp_bias"], mlp);
      std::set<std::string> names;
      for (const WeightRule& rule : weight_map(model, exporting_family(model))) names.insert(rule.name);
      EXPECT_EQ(names.contains("decoder.layers.0.self_attention.linear_qkv.bias"), attention);
      EXPECT_EQ(names.contains("decoder.layers.0.self_attention.linear_proj.bias"), attention);
      EXPECT_EQ(names.contains("decoder.layers.0.mlp.linear_fc1.bias"), mlp);
      EXPECT_EQ(names.contains("decoder.layers.0.mlp.linear_fc2.bias"), mlp);
    }
  }
  ModelConfig only_qkv = model_of(golden("llama"));
  only_qkv.add_qkv_bias = true;
  EXPECT_EQ(nlohmann::json::parse(huggingface_config(only_qkv, DType::F32))["model_type"], "qwen2");
  only_qkv.add_mlp_bias = true;
  EXPECT_CONTAINS(error_of([&] { huggingface_config(only_qkv, DType::F32); }),
                  "llama requires different values of model.add_attention_output_bias");
}

TEST(HuggingfaceConfigTest, ReadsBothFormsOfRopeScaling) {
  using Json = nlohmann::json;
  const auto scaling_of = [&](const Json& scaling, bool is_new, i64 longest = 131072) {
    auto json = Json::parse(read_text_file(golden("llama") / "config.json"));
    json["max_position_embeddings"] = longest;
    json.erase("rope_parameters");
    if (!is_new) json["rope_theta"] = 500000.0;
    json[is_new ? "rope_parameters" : "rope_scaling"] = scaling;
    if (is_new) json["rope_parameters"]["rope_theta"] = 500000.0;
    const ModelConfig model = parse_huggingface_config(json.dump(), "config.json");
    EXPECT_EQ(model.rotary_base, 500000);
    const ModelConfig reread = parse_huggingface_config(huggingface_config(model, DType::F32), "again");
    EXPECT_EQ(reread.rope_scaling, model.rope_scaling);
    return model.rope_scaling;
  };
  // The scaling of Llama 3.1 8B.
  const Json llama31{{"factor", 8.0},
                     {"low_freq_factor", 1.0},
                     {"high_freq_factor", 4.0},
                     {"original_max_position_embeddings", 8192},
                     {"rope_type", "llama3"}};
  const RopeScaling expected{.type = RopeScalingType::Llama3, .factor = 8, .original_max_position_embeddings = 8192};
  for (const bool is_new : {false, true}) {
    EXPECT_EQ(scaling_of(llama31, is_new), expected);
    EXPECT_EQ(scaling_of({{"type", "linear"}, {"factor", 2}}, is_new),
              (RopeScaling{.type = RopeScalingType::Linear, .factor = 2}));
    EXPECT_EQ(scaling_of({{"rope_type", "yarn"}, {"original_max_position_embeddings", 32768}}, is_new),
              (RopeScaling{.type = RopeScalingType::Yarn, .factor = 4, .original_max_position_embeddings = 32768}));
    EXPECT_EQ(scaling_of({{"rope_type", "yarn"},
                          {"factor", 3},
                          {"beta_fast", 16},
                          {"mscale", 0.5},
                          {"mscale_all_dim", 0.7},
                          {"truncate", false}},
                         is_new),
              (RopeScaling{.type = RopeScalingType::Yarn,
                           .factor = 3,
                           .original_max_position_embeddings = 131072,
                           .beta_fast = 16,
                           .mscale = 0.5,
                           .mscale_all_dim = 0.7,
                           .truncate = false}));
  }
}

TEST(HuggingfaceConfigTest, RejectsRopeScalingWithoutType) {
  const auto error_with = [&](const nlohmann::json& scaling) {
    auto json = nlohmann::json::parse(read_text_file(golden("llama") / "config.json"));
    json.erase("rope_parameters");
    json["rope_scaling"] = scaling;
    return error_of([&] { parse_huggingface_config(json.dump(), "config.json"); });
  };
  EXPECT_CONTAINS(error_with({{"factor", 2.0}}),
                  "config.json: 'rope_scaling': 'factor' is set without a 'rope_type' that uses it");
  EXPECT_CONTAINS(error_with({{"rope_theta", 10000.0}, {"low_freq_factor", 1.0}}), "'low_freq_factor' is set without");
  EXPECT_EQ(error_with({{"rope_theta", 10000.0}}), "");
  EXPECT_EQ(error_with(nlohmann::json::object()), "");
}

TEST(HuggingfaceConfigTest, ReadsWindowsLikeTransformers) {
  using Json = nlohmann::json;
  const auto layers_of = [&](const char* type, const std::function<void(Json&)>& change) {
    auto json = Json::parse(read_text_file(golden("llama") / "config.json"));  // a model of four layers
    json["model_type"] = type;
    change(json);
    const ModelConfig model = parse_huggingface_config(json.dump(), "config.json");
    const ModelConfig reread = parse_huggingface_config(huggingface_config(model, DType::F32), "again");
    EXPECT_EQ(reread.window_size, model.window_size);
    EXPECT_EQ(reread.window_attn_skip_freq, model.window_attn_skip_freq);
    std::vector<i64> windows;
    for (i64 layer = 0; layer < 4; ++layer) windows.push_back(block_spec(model, layer).attention()->window);
    return windows;
  };
  using Windows = std::vector<i64>;
  const auto types = [](Json& j, const std::vector<int>& slides) {
    for (const int x : slides) j["layer_types"].push_back(x != 0 ? "sliding_attention" : "full_attention");
    j["sliding_window"] = 9;
  };
  EXPECT_EQ(layers_of("mistral", [](Json&) {}), (Windows{4096, 4096, 4096, 4096}));  // the default of the model type
  EXPECT_EQ(layers_of("mistral", [](Json& j) { j["sliding_window"] = nullptr; }), (Windows{0, 0, 0, 0}));
  EXPECT_EQ(layers_of("mistral", [](Json& j) { j["sliding_window"] = 7; }), (Windows{7, 7, 7, 7}));
  EXPECT_EQ(layers_of("ministral", [&](Json& j) { types(j, {1, 0, 1, 0}); }), (Windows{9, 0, 9, 0}));
  EXPECT_EQ(layers_of("mistral", [&](Json& j) { types(j, {0, 1, 1, 0}); }), (Windows{0, 9, 9, 0}));
  EXPECT_EQ(layers_of("qwen2", [&](Json& j) { types(j, {0, 1, 0, 1}); }), (Windows{0, 9, 0, 9}));
  EXPECT_EQ(layers_of("qwen2", [](Json& j) { j["sliding_window"] = 7, j["max_window_layers"] = 0; }),
            (Windows{0, 0, 0, 0}));
  const auto used = [](i64 max_window_layers) {
    return [=](Json& j) {
      j["sliding_window"] = 7, j["use_sliding_window"] = true, j["max_window_layers"] = max_window_layers;
    };
  };
  EXPECT_EQ(layers_of("qwen2", used(0)), (Windows{7, 7, 7, 7}));
  EXPECT_EQ(layers_of("qwen2", used(3)), (Windows{0, 0, 0, 7}));
  EXPECT_EQ(layers_of("qwen2", used(28)), (Windows{0, 0, 0, 0}));
  const auto every = [](const Json& n) {
    return [=](Json& j) {
      j["sliding_window"] = 7;
      if (!n.is_null()) j["sliding_window_pattern"] = n;
    };
  };
  EXPECT_EQ(layers_of("gemma2", every(nullptr)), (Windows{7, 0, 7, 0}));
  EXPECT_EQ(layers_of("gemma3_text", every(nullptr)), (Windows{7, 7, 7, 7}));
  EXPECT_EQ(layers_of("gemma3_text", every(3)), (Windows{7, 7, 0, 7}));
  EXPECT_EQ(layers_of("gemma3_text", every(1)), (Windows{0, 0, 0, 0}));
  EXPECT_EQ(layers_of("gemma2", [&](Json& j) { types(j, {0, 1, 1, 0}); }), (Windows{0, 9, 9, 0}));
}

}  // namespace
}  // namespace mcpp
