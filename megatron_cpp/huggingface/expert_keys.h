// Mixtures of experts in config.json: of mixtral, in every layer, and of qwen2_moe, in some and with a shared expert.
#pragma once
#include <string>
#include <vector>

#include "base/json/json.h"
#include "megatron_cpp/huggingface/config_json.h"
#include "megatron_cpp/huggingface/huggingface_config.h"

namespace mcpp {

bool has_experts(HuggingfaceFamily family);
/// Sets model.moe; model.num_layers must be set.
void parse_experts(const ConfigJson& config, HuggingfaceFamily family, ModelConfig& model);
/// Adds the keys that parse_experts() reads.
void add_experts(const ModelConfig& model, HuggingfaceFamily family, OrderedJson& json);
/// Of the model's experts, what keeps it from being of a family, as names of keys.
std::vector<std::string> expert_obstacles(const ModelConfig& model, HuggingfaceFamily family);

}  // namespace mcpp
