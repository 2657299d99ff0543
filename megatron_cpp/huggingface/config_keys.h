// Keys of attention and of experts in config.json.
#pragma once
#include <string>
#include <vector>

#include "base/json.h"
#include "megatron_cpp/huggingface/config_json.h"
#include "megatron_cpp/huggingface/families.h"

namespace mcpp {

// RoPE and sliding windows in config.json.

/// Sets the bases and the scaling of RoPE from rope_theta and rope_scaling, or from rope_parameters of transformers 5.
/// Throws BadInput for an unsupported scaling. model.max_positions() must be set.
void parse_rope(const ConfigJson& config, const Family& family, ModelConfig& model);
/// Returns the value of rope_scaling in transformers 4, which transformers 5 reads as rope_parameters; null without
/// scaling.
OrderedJson rope_scaling_json(const ModelConfig& model);

/// Sets the layers without RoPE from no_rope_layers or no_rope_layer_interval; model.num_layers must be set.
void parse_no_rope_layers(const ConfigJson& config, ModelConfig& model);
/// Adds no_rope_layers, which has 1 for layers with RoPE and 0 for the others.
void add_no_rope_layers(const ModelConfig& model, OrderedJson& json);

/// Returns the shortest form of a key that selects all layers but every n-th: [n] if these layers are, otherwise a list
/// of 1 and 0.
std::vector<i64> all_but_every_nth(const std::vector<bool>& selected);
/// Returns false if transformers would rotate another number of channels of each head, because it is odd.
bool rotates_pairs(const ModelConfig& model);
/// Returns true if a layer rotates queries and keys.
bool has_rope(const ModelConfig& model, i64 layer);

/// Sets the window of each layer as transformers does for Llama-like model types. Call it after parse_rope() and
/// parse_no_rope_layers().
/// model.num_layers must be set.
void parse_windows(const ConfigJson& config, const LlamaTraits& traits, ModelConfig& model);
/// Adds the keys that parse_windows() reads.
void add_windows(const ModelConfig& model, WindowKeys keys, OrderedJson& json);

/// Returns the number of layers with a window.
i64 count_windows(const ModelConfig& model);

/// Returns true if a type with such layers can have the layers with Gated DeltaNet of the model.
bool supports_linear_layers(const ModelConfig& model, LinearLayers layers);

// Mixtures of experts in config.json: mixtral, in every layer; qwen3_moe, qwen2_moe and qwen3_next, in some layers, the
// last two with a shared expert; qwen3_5_moe_text, in every layer with a shared expert; and DeepSeek's experts
// (deepseek_keys.cpp) in all layers but the first ones, with shared experts: those of V2 have softmax scores, those of
// V3, which dots1 and glm4_moe_lite share, sigmoid scores and a balancing bias.

/// Returns true for the keys of DeepSeek's model types and of those derived from them.
constexpr bool has_deepseek_keys(ExpertKeys keys) {
  return keys == ExpertKeys::Dots1 || keys == ExpertKeys::DeepSeekV2 || keys == ExpertKeys::DeepSeekV3 ||
         keys == ExpertKeys::Glm4MoeLite;
}
/// As parse_experts() and add_experts(), for such keys.
void parse_deepseek_experts(const ConfigJson& config, ExpertKeys keys, ModelConfig& model);
void add_deepseek_experts(const ModelConfig& model, ExpertKeys keys, OrderedJson& json);

/// Defaults of keys of V3's router.
struct V3RouterDefaults {
  i64 groups = 1, group_topk = 1;
  bool normalizes = false;
};
/// Sets sigmoid scores with a balancing bias, and groups from n_group and topk_group; moe.router_topk must be set.
void parse_v3_router(const ConfigJson& config, const V3RouterDefaults& defaults, MoeConfig& moe);

/// Sets model.moe; model.num_layers must be set.
void parse_experts(const ConfigJson& config, ExpertKeys keys, ModelConfig& model);
/// Returns the keys of a model with experts whose values add_experts() cannot express.
std::vector<std::string> unsupported_expert_options(const ModelConfig& model, ExpertKeys keys);
/// Adds the keys that parse_experts() reads.
void add_experts(const ModelConfig& model, ExpertKeys keys, OrderedJson& json);

}  // namespace mcpp
