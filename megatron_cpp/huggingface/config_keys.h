// Conversion of the keys of attention, of experts and of multi-token prediction in config.json.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "megatron_cpp/huggingface/config_json.h"
#include "megatron_cpp/huggingface/families.h"

namespace mcpp {

// RoPE and sliding windows in config.json.

/// Sets the bases and the scaling of RoPE from rope_theta and rope_scaling, or from rope_parameters of transformers 5.
/// model.max_positions() must be set. Throws BadInput for an unsupported scaling.
void parse_rope(const ConfigJson& config, const Family& family, ModelConfig& model);
/// Returns the value of rope_scaling, which transformers 5 converts to rope_parameters, or null without scaling.
OrderedJson rope_scaling_json(const ModelConfig& model);

/// Sets the layers without RoPE from no_rope_layers or no_rope_layer_interval; model.num_layers must be set.
void parse_no_rope_layers(const ConfigJson& config, ModelConfig& model);
/// Adds the key no_rope_layers, a list that (despite its name) has 1 for layers with RoPE and 0 for layers without.
void add_no_rope_layers(const ModelConfig& model, OrderedJson& json);

/// Returns the value of a configuration key that selects layers: [n] if all layers but every n-th are selected,
/// otherwise a list with 1 or 0 per layer.
std::vector<i64> all_but_every_nth(const std::vector<bool>& selected);
/// Returns true if the number of rotated channels per head is even. transformers rounds an odd number, so such a model
/// cannot be exported.
bool rotates_pairs(const ModelConfig& model);
/// Returns true if the layer applies RoPE to queries and keys.
bool has_rope(const ModelConfig& model, i64 layer);

/// Sets the window of each layer by the rules of transformers for Llama-like model types. Call it after parse_rope()
/// and parse_no_rope_layers(). model.num_layers must be set.
void parse_windows(const ConfigJson& config, const LlamaTraits& traits, ModelConfig& model);
/// Adds the keys that parse_windows() reads.
void add_windows(const ModelConfig& model, WindowKeys keys, OrderedJson& json);

/// Returns the number of layers with a window.
i64 count_windows(const ModelConfig& model);

/// Returns true if a model type with the rule `layers` allows the model's choice of layers with linear attention.
bool supports_linear_layers(const ModelConfig& model, LinearLayers layers);

// Mixtures of experts in config.json:
// - mixtral has experts in every layer;
// - qwen3_moe, qwen2_moe and qwen3_next have them in some layers, the latter two with a shared expert;
// - qwen3_5_moe_text has them in every layer, with a shared expert;
// - DeepSeek's types (deepseek_keys.cpp) have them in all layers after the first few, with shared experts. V2 has
//   softmax scores; V3, dots1, glm4_moe_lite and kimi_linear have sigmoid scores and a balancing bias.

/// Returns true for DeepSeek's model types and the types derived from them.
constexpr bool has_deepseek_keys(ExpertKeys keys) {
  return keys == ExpertKeys::Dots1 || keys == ExpertKeys::DeepSeekV2 || keys == ExpertKeys::DeepSeekV3 ||
         keys == ExpertKeys::Glm4MoeLite || keys == ExpertKeys::KimiLinear;
}
/// Implementations of parse_experts() and add_experts() for has_deepseek_keys().
void parse_deepseek_experts(const ConfigJson& config, ExpertKeys keys, ModelConfig& model);
void add_deepseek_experts(const ModelConfig& model, ExpertKeys keys, OrderedJson& json);

/// Defaults for absent keys of DeepSeek-V3's router.
struct V3RouterDefaults {
  i64 groups = 1, group_topk = 1;
  bool normalizes = false;
};
/// Sets sigmoid scores with a balancing bias, and the groups of experts from n_group and topk_group. moe.router_topk
/// must be set.
void parse_v3_router(const ConfigJson& config, const V3RouterDefaults& defaults, MoeConfig& moe);

/// Sets model.moe. model.num_layers must be set.
void parse_experts(const ConfigJson& config, ExpertKeys keys, ModelConfig& model);
/// Returns the configuration keys of a model with experts whose values add_experts() cannot express.
std::vector<std::string> unsupported_expert_options(const ModelConfig& model, ExpertKeys keys);
/// Adds the keys that parse_experts() reads.
void add_experts(const ModelConfig& model, ExpertKeys keys, OrderedJson& json);

// Multi-token prediction in config.json.

/// Returns the number of layers for multi-token prediction in config.json, or std::nullopt if the key is absent.
std::optional<i64> parse_prediction_layers(const ConfigJson& config, const LlamaTraits& traits);
/// Throws BadInput if the model type does not support the number of layers for multi-token prediction in config.json.
void check_prediction_layers(const ConfigJson& config, const LlamaTraits& traits, i64 count);
/// Sets the number of layers for multi-token prediction, and their branches in files of the model type. All other
/// members must be set. With PredictionForm::Branches, mtp_hybrid_layer_pattern must be set, too.
void set_prediction_layers(ModelConfig& model, const LlamaTraits& traits, i64 count);
/// Adds the key that parse_prediction_layers() reads.
void add_prediction_layers(const ModelConfig& model, const LlamaTraits& traits, OrderedJson& json);

}  // namespace mcpp
