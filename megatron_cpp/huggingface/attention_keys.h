// RoPE and sliding windows in config.json.
#pragma once
#include "base/json.h"
#include "megatron_cpp/huggingface/config_json.h"
#include "megatron_cpp/huggingface/families.h"

namespace mcpp {

/// Sets the bases and the scaling of RoPE from rope_theta and rope_scaling, or from rope_parameters of transformers 5.
/// Throws BadInput for an unsupported scaling. model.max_positions() must be set.
void parse_rope(const ConfigJson& config, const Family& family, ModelConfig& model);
/// Returns the value of rope_scaling in transformers 4, which transformers 5 reads as rope_parameters; null without
/// scaling.
OrderedJson rope_scaling_json(const ModelConfig& model);

/// Sets which layers have a window of which size, as transformers does for Llama-like model types. Call it after
/// parse_rope(). model.num_layers must be set.
void parse_windows(const ConfigJson& config, const LlamaTraits& traits, ModelConfig& model);
/// Adds the keys that parse_windows() reads.
void add_windows(const ModelConfig& model, WindowKeys keys, OrderedJson& json);

/// Returns the number of layers with a window.
i64 count_windows(const ModelConfig& model);

}  // namespace mcpp
