// RoPE and sliding windows in config.json.
#pragma once
#include "base/json/json.h"
#include "megatron_cpp/huggingface/config_json.h"
#include "megatron_cpp/huggingface/families.h"

namespace mcpp {

/// Sets the bases and the scaling of RoPE, from rope_theta and rope_scaling, or from rope_parameters of transformers 5.
/// Throws BadInput for a scaling that is not one of ours. model.max_positions() must be set.
void parse_rope(const ConfigJson& config, const Family& family, ModelConfig& model);
/// What transformers 4 calls rope_scaling, and transformers 5 reads as rope_parameters; null without scaling.
OrderedJson rope_scaling_json(const ModelConfig& model);

/// Sets which layers have a window of which size, as transformers does for a model type of Llama's kin, after
/// parse_rope(). model.num_layers must be set.
void parse_windows(const ConfigJson& config, const LlamaTraits& traits, ModelConfig& model);
/// Adds the keys that parse_windows() reads.
void add_windows(const ModelConfig& model, WindowKeys keys, OrderedJson& json);

/// How many layers have a window.
i64 count_windows(const ModelConfig& model);

}  // namespace mcpp
