// Conversion of config.json for gpt_oss, llama4_text and smollm3, which add keys to llama.
#include <algorithm>

#include "base/strings.h"
#include "megatron_cpp/huggingface/config_keys.h"
#include "megatron_cpp/huggingface/families.h"
#include "model/config/block_spec.h"

namespace mcpp {
namespace {

/// Returns the number of layers with RoPE.
i64 count_rope_layers(const ModelConfig& model) {
  i64 count = 0;
  for (i64 layer = 0; layer < model.num_layers; ++layer) count += has_rope(model, layer) ? 1 : 0;
  return count;
}

}  // namespace

ModelConfig parse_smollm3(const ConfigJson& config, const Family& family) {
  ModelConfig model = parse_llama(config, family);
  model.untie_embeddings_and_output_weights = !config.flag("tie_word_embeddings", true);
  return model;
}

ModelConfig parse_gpt_oss(const ConfigJson& config, const Family& family) {
  ModelConfig model = parse_llama(config, family);
  const double alpha = config.number("swiglu_alpha", 1.702);
  config.require(alpha == 1.702, "swiglu_alpha", alpha, "1.702");
  model.activation_func = ActivationFunction::QuickGeGLU;
  model.activation_func_clamp_value = config.number("swiglu_limit", 7);
  config.require(model.activation_func_clamp_value > 0, "swiglu_limit", model.activation_func_clamp_value, "above 0");
  model.glu_linear_offset = 1;
  model.softmax_type = SoftmaxType::Learnable;
  model.add_qkv_bias = model.add_attention_output_bias = config.flag("attention_bias", true);
  model.add_mlp_bias = true;
  if (!config.find("rope_scaling") && !config.find("rope_parameters"))
    model.rope_scaling = {
        .type = RopeScalingType::Yarn, .factor = 32, .original_max_position_embeddings = 4096, .truncate = false};
  const char* key = config.find("num_experts") ? "num_experts" : "num_local_experts";
  model.moe.num_experts = config.integer(key, 128);
  model.moe.router_topk = config.integer("num_experts_per_tok", 4);
  model.moe.router_add_bias = true;
  model.moe.aux_loss_coeff = config.number("router_aux_loss_coef", 0.001);
  config.require(model.moe.router_topk > 1, "num_experts_per_tok", model.moe.router_topk, "2 or more");
  return model;
}

OrderedJson write_gpt_oss(const ModelConfig& m, const Family& family) {
  OrderedJson json = write_llama(m, family);
  if (m.rope_scaling.type == RopeScalingType::None)  // transformers scales RoPE if the key is absent
    json["rope_scaling"] = {{"rope_type", "default"}, {"rope_theta", m.rotary_base}};
  json.update({{"intermediate_size", m.moe_ffn()},
               {"num_local_experts", m.moe.num_experts},
               {"num_experts_per_tok", m.moe.router_topk},
               {"router_aux_loss_coef", m.moe.total_aux_loss_coeff()},
               {"swiglu_alpha", 1.702},
               {"swiglu_limit", m.activation_func_clamp_value}});
  return json;
}

namespace {

/// Sets the layers with experts from moe_layers or interleave_moe_layer_step.
void parse_llama4_experts(const ConfigJson& config, ModelConfig& model) {
  MoeConfig& moe = model.moe;
  const i64 layers = model.num_layers;
  moe.ffn_hidden_size = moe.shared_expert_intermediate_size = config.integer("intermediate_size");
  model.ffn_hidden_size = config.integer("intermediate_size_mlp", 16384);
  moe.num_experts = config.integer("num_local_experts", 16);
  moe.router_topk = config.integer("num_experts_per_tok", 1);
  config.require(moe.router_topk == 1, "num_experts_per_tok", moe.router_topk, "1");
  moe.router_score_function = RouterScore::Sigmoid;
  moe.apply_probs_on_input = true;
  moe.aux_loss_coeff = config.number("router_aux_loss_coef", 0.001);
  if (layers > kMaxLayers) return;  // rejected later with other values out of range
  std::vector<i64> sparse(static_cast<std::size_t>(layers), 0);
  if (config.find("moe_layers")) {
    for (const Json& layer : config.array("moe_layers")) {
      const bool is_valid = layer.is_number_integer() && layer.get<i64>() >= 0 && layer.get<i64>() < layers;
      config.require(is_valid, "moe_layers", layer.dump(), "numbers of layers, from 0");
      sparse[layer.get<std::size_t>()] = 1;
    }
  } else {
    const i64 step = config.integer("interleave_moe_layer_step", 1);
    for (i64 layer = step - 1; layer < layers; layer += step) sparse[static_cast<std::size_t>(layer)] = 1;
  }
  const i64 count = std::ranges::count(sparse, 1);
  config.require(count > 0, "moe_layers", "empty", "at least one layer with experts");
  moe.layer_freq = count == layers ? std::vector<i64>{1} : sparse;
}

/// Sets attention_chunk_size. Throws if layer_types does not assign chunks to exactly the layers with RoPE.
void parse_chunks(const ConfigJson& config, ModelConfig& model) {
  const bool is_stated = config.has_key("attention_chunk_size");
  model.attention_chunk_size = is_stated ? config.count("attention_chunk_size", 0) : 8192;
  if (!config.find("layer_types") || model.num_layers > kMaxLayers) return;
  const Json& types = config.array("layer_types");
  config.require(static_cast<i64>(types.size()) == model.num_layers, "layer_types", str("of ", types.size(), " layers"),
                 "one for each of num_hidden_layers");
  i64 chunked = 0;
  for (const Json& type : types) chunked += type == "chunked_attention" ? 1 : 0;
  if (chunked == 0) model.attention_chunk_size = 0;
  for (i64 layer = 0; layer < model.num_layers; ++layer) {
    const bool is_chunked = model.attention_chunk_size > 0 && has_rope(model, layer);
    const Json& type = types[static_cast<std::size_t>(layer)];
    config.require(type == (is_chunked ? "chunked_attention" : "full_attention"), "layer_types", type.dump(),
                   "chunked_attention in the layers with RoPE, full_attention in the others");
  }
}

}  // namespace

ModelConfig parse_llama4(const ConfigJson& config, const Family& family) {
  ModelConfig model = parse_llama(config, family);
  config.require(model.head_dim() % 2 == 0, "head_dim", model.head_dim(), "even numbers");
  parse_llama4_experts(config, model);
  if (model.num_layers > kMaxLayers) return model;
  parse_chunks(config, model);
  const i64 rope_layers = count_rope_layers(model);
  model.qk_l2_norm = config.flag("use_qk_norm", true);
  if (config.flag("attn_temperature_tuning", true) && rope_layers < model.num_layers) {
    model.attn_temperature_tuning = true;
    model.attn_temperature_floor_scale = config.number("floor_scale", 8192);
    model.attn_temperature_scale = config.number("attn_scale", 0.1);
  }
  return model;
}

OrderedJson write_llama4(const ModelConfig& m, const Family& family) {
  OrderedJson json = write_llama(m, family), types = OrderedJson::array();
  std::vector<i64> sparse;
  for (i64 layer = 0; layer < m.num_layers; ++layer) {
    const bool is_chunked = m.attention_chunk_size > 0 && has_rope(m, layer);
    types.push_back(is_chunked ? "chunked_attention" : "full_attention");
    if (block_spec(m, layer).moe()) sparse.push_back(layer);
  }
  json.update(
      {{"intermediate_size", m.moe_ffn()},
       {"intermediate_size_mlp", m.max_ffn()},
       {"num_local_experts", m.moe.num_experts},
       {"num_experts_per_tok", m.moe.router_topk},
       {"moe_layers", sparse},
       {"router_aux_loss_coef", m.moe.total_aux_loss_coeff()},
       {"use_qk_norm", m.qk_l2_norm},
       {"attention_chunk_size", m.attention_chunk_size > 0 ? OrderedJson(m.attention_chunk_size) : OrderedJson()},
       {"layer_types", types},
       {"attn_temperature_tuning", m.attn_temperature_tuning},
       {"attn_scale", m.attn_temperature_scale}});
  // transformers requires an integer here.
  const double floor_scale = m.attn_temperature_floor_scale;
  const bool is_whole = floor_scale == static_cast<double>(static_cast<i64>(floor_scale));
  json["floor_scale"] = is_whole ? OrderedJson(static_cast<i64>(floor_scale)) : OrderedJson(floor_scale);
  return json;
}

}  // namespace mcpp
