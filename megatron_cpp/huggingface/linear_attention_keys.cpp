// Model types with Gated DeltaNet in some layers: qwen3_next, qwen3_5_text and qwen3_5_moe_text.
#include <algorithm>

#include "megatron_cpp/huggingface/config_keys.h"
#include "megatron_cpp/huggingface/families.h"
#include "model/config/block_spec.h"

namespace mcpp {
namespace {

constexpr const char *kLinearType = "linear_attention", *kFullType = "full_attention";

/// Returns which layers have Gated DeltaNet: those of layer_types, or all but every full_attention_interval-th.
std::vector<bool> parse_linear_layers(const ConfigJson& config, i64 layers) {
  std::vector<bool> linear;
  if (!config.find("layer_types")) {
    const i64 interval = config.integer("full_attention_interval", 4);
    for (i64 layer = 0; layer < layers; ++layer) linear.push_back((layer + 1) % interval != 0);
    return linear;
  }
  for (const Json& type : config.array("layer_types")) {
    config.require(type == kLinearType || type == kFullType, "layer_types", type.dump(),
                   "linear_attention, full_attention");
    linear.push_back(type == kLinearType);
  }
  config.require(static_cast<i64>(linear.size()) == layers, "layer_types", str("of ", linear.size(), " layers"),
                 "one for each of num_hidden_layers");
  return linear;
}

/// Sets the layers with Gated DeltaNet and its sizes.
void parse_linear_attention(const ConfigJson& config, ModelConfig& model) {
  const std::vector<bool> linear = parse_linear_layers(config, model.num_layers);
  if (std::ranges::count(linear, true) == 0) return;
  RecurrentConfig& recurrent = model.recurrent;
  recurrent.linear_attention_freq = all_but_every_nth(linear);
  recurrent.linear_num_key_heads = config.integer("linear_num_key_heads", 16);
  recurrent.linear_num_value_heads = config.integer("linear_num_value_heads", 32);
  recurrent.linear_key_head_dim = config.integer("linear_key_head_dim", 128);
  recurrent.linear_value_head_dim = config.integer("linear_value_head_dim", 128);
  recurrent.linear_conv_kernel_dim = config.integer("linear_conv_kernel_dim", 4);
}

void add_linear_attention(const ModelConfig& m, OrderedJson& json) {
  OrderedJson types = OrderedJson::array();
  for (i64 layer = 0; layer < m.num_layers; ++layer)
    types.push_back(block_spec(m, layer).recurrent() ? kLinearType : kFullType);
  json.update({{"layer_types", types},
               {"linear_num_key_heads", m.recurrent.linear_num_key_heads},
               {"linear_num_value_heads", m.recurrent.linear_num_value_heads},
               {"linear_key_head_dim", m.recurrent.linear_key_head_dim},
               {"linear_value_head_dim", m.recurrent.linear_value_head_dim},
               {"linear_conv_kernel_dim", m.recurrent.linear_conv_kernel_dim}});
}

}  // namespace

ModelConfig parse_qwen3_next(const ConfigJson& config, const Family& family) {
  ModelConfig model = parse_llama(config, family);
  for (const char* key : {"attention_bias", "mlp_bias"}) config.require(!config.flag(key, false), key, "true", "false");
  config.require(config.flag("attn_output_gate", true), "attn_output_gate", "false", "true");
  if (model.num_layers > kMaxLayers) return model;  // rejected later with other values out of range
  parse_linear_attention(config, model);
  model.attention_output_gate = {1};
  model.apply_layernorm_1p = true;
  return model;
}

OrderedJson write_qwen3_next(const ModelConfig& m, const Family& family) {
  OrderedJson json = write_llama(m, family);
  if (family.traits.experts == ExpertKeys::Qwen35Moe) json.erase("intermediate_size");  // no layer has a dense MLP
  add_linear_attention(m, json);
  json["attention_bias"] = false;
  return json;
}

}  // namespace mcpp
