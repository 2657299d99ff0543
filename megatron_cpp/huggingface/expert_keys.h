// Mixtures of experts in config.json: mixtral, in every layer; qwen3_moe and qwen2_moe, in some layers, the latter with
// a shared expert; and DeepSeek-V3 routing (sigmoid scores, balancing bias, groups) in all layers but the first ones,
// with shared experts.
#pragma once
#include <string>
#include <vector>

#include "base/json.h"
#include "megatron_cpp/huggingface/config_json.h"
#include "megatron_cpp/huggingface/families.h"

namespace mcpp {

/// Sets model.moe; model.num_layers must be set.
void parse_experts(const ConfigJson& config, ExpertKeys keys, ModelConfig& model);
/// Returns the keys of a model with experts whose values add_experts() cannot express.
std::vector<std::string> unsupported_expert_options(const ModelConfig& model, ExpertKeys keys);
/// Adds the keys that parse_experts() reads.
void add_experts(const ModelConfig& model, ExpertKeys keys, OrderedJson& json);

}  // namespace mcpp
