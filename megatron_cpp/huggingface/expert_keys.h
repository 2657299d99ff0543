// Mixtures of experts in config.json: of mixtral, in every layer; of qwen3_moe and qwen2_moe, in some, of the latter
// with a shared expert; and routed as DeepSeek-V3 does (sigmoid scores, a bias that balances, groups), in all layers
// but the first ones, with shared experts.
#pragma once
#include <string>
#include <vector>

#include "base/json/json.h"
#include "megatron_cpp/huggingface/config_json.h"
#include "megatron_cpp/huggingface/families.h"

namespace mcpp {

/// Sets model.moe; model.num_layers must be set.
void parse_experts(const ConfigJson& config, ExpertKeys keys, ModelConfig& model);
/// Keys of a model with experts whose values add_experts() cannot say.
std::vector<std::string> unsayable_experts(const ModelConfig& model, ExpertKeys keys);
/// Adds the keys that parse_experts() reads.
void add_experts(const ModelConfig& model, ExpertKeys keys, OrderedJson& json);

}  // namespace mcpp
