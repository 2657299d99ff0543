// Model types with linear attention in some layers: Gated DeltaNet in qwen3_next, qwen3_5_text, qwen3_5_moe_text and
// olmo_hybrid, Kimi Delta Attention in kimi_linear.
#include <algorithm>

#include "megatron_cpp/huggingface/config_keys.h"
#include "megatron_cpp/huggingface/families.h"
#include "model/config/block_spec.h"

namespace mcpp {
namespace {

constexpr const char *kLinearType = "linear_attention", *kFullType = "full_attention";

std::vector<bool> all_but_every(i64 interval, i64 layers) {
  std::vector<bool> selected;
  for (i64 layer = 0; layer < layers; ++layer) selected.push_back((layer + 1) % interval != 0);
  return selected;
}

/// Returns, for each layer, whether it has linear attention, from layer_types. Returns `absent` without this key.
std::vector<bool> parse_linear_layers(const ConfigJson& config, i64 layers, const std::vector<bool>& absent) {
  if (!config.find("layer_types")) return absent;
  std::vector<bool> linear;
  for (const Json& type : config.array("layer_types")) {
    config.require(type == kLinearType || type == kFullType, "layer_types", type.dump(),
                   "linear_attention, full_attention");
    linear.push_back(type == kLinearType);
  }
  config.require(static_cast<i64>(linear.size()) == layers, "layer_types", str("of ", linear.size(), " layers"),
                 "one for each of num_hidden_layers");
  return linear;
}

/// Returns the sizes of Gated DeltaNet. Absent keys have the values of `defaults`.
RecurrentConfig parse_linear_sizes(const ConfigJson& config, const RecurrentConfig& defaults) {
  RecurrentConfig sizes = defaults;
  for (const auto& [key, size] : {std::pair{"linear_num_key_heads", &sizes.linear_num_key_heads},
                                  {"linear_num_value_heads", &sizes.linear_num_value_heads},
                                  {"linear_key_head_dim", &sizes.linear_key_head_dim},
                                  {"linear_value_head_dim", &sizes.linear_value_head_dim},
                                  {"linear_conv_kernel_dim", &sizes.linear_conv_kernel_dim}})
    *size = config.integer(key, *size);
  return sizes;
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

/// Returns the defaults of transformers for absent keys of olmo_hybrid.
RecurrentConfig olmo_hybrid_defaults(const ConfigJson& config, const ModelConfig& model) {
  const i64 heads = model.num_attention_heads.first(), key_heads = config.integer("linear_num_key_heads", heads);
  const auto key_dim = static_cast<i64>(0.75 * static_cast<double>(model.hidden_size) / static_cast<double>(key_heads));
  return {.linear_num_key_heads = heads,
          .linear_num_value_heads = heads,
          .linear_key_head_dim = key_dim,
          .linear_value_head_dim = 2 * config.integer("linear_key_head_dim", key_dim)};
}

/// Returns true if rope_theta is null, which means attention without RoPE.
bool has_null_rope(const ConfigJson& config) {
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    const std::optional<ConfigJson> rope = config.object(key);
    if (rope && rope->has_key("rope_theta")) return !rope->find("rope_theta");
    if (rope) break;
  }
  return config.has_key("rope_theta") && !config.find("rope_theta");
}

}  // namespace

bool supports_linear_layers(const ModelConfig& model, LinearLayers layers) {
  const bool has_any = !model.recurrent.linear_attention_freq.empty();
  if (layers != LinearLayers::Some) return layers == LinearLayers::Any || !has_any;
  i64 count = 0;
  for (i64 layer = 0; layer < model.num_layers; ++layer) count += block_spec(model, layer).recurrent() ? 1 : 0;
  return count > 0 && count < model.num_layers;
}

ModelConfig parse_qwen3_next(const ConfigJson& config, const Family& family) {
  ModelConfig model = parse_llama(config, family);
  for (const char* key : {"attention_bias", "mlp_bias"}) config.require(!config.flag(key, false), key, "true", "false");
  config.require(config.flag("attn_output_gate", true), "attn_output_gate", "false", "true");
  if (model.num_layers > kMaxLayers) return model;  // rejected later with other values out of range
  const i64 interval = config.integer("full_attention_interval", 4);
  const std::vector<bool> linear =
      parse_linear_layers(config, model.num_layers, all_but_every(interval, model.num_layers));
  if (std::ranges::count(linear, true) > 0) {
    model.recurrent = parse_linear_sizes(config, {});
    model.recurrent.linear_attention_freq = all_but_every_nth(linear);
  }
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

ModelConfig parse_olmo_hybrid(const ConfigJson& config, const Family& family) {
  constexpr double kScanNormEpsilon = 1e-5;  // fixed in transformers
  ModelConfig model = parse_llama(config, family);
  if (has_null_rope(config)) {
    const ModelConfig defaults;
    model.position_embedding_type = PositionEmbedding::None;
    model.rotary_base = defaults.rotary_base, model.rope_scaling = defaults.rope_scaling;
  }
  if (model.num_layers > kMaxLayers) return model;  // rejected later with other values out of range
  std::vector<bool> linear = all_but_every(4, model.num_layers);
  if (std::ranges::count(linear, false) == 0) linear.back() = false;
  linear = parse_linear_layers(config, model.num_layers, linear);
  const i64 count = std::ranges::count(linear, true);
  config.require(count > 0 && count < model.num_layers, "layer_types",
                 str(count == 0 ? kFullType : kLinearType, " in all layers"), "at least one layer of each type");
  RecurrentConfig& recurrent = model.recurrent;
  recurrent = parse_linear_sizes(config, olmo_hybrid_defaults(config, model));
  recurrent.linear_attention_freq = model.post_norm_freq = all_but_every_nth(linear);
  if (model.post_norm_freq.size() > 1)
    for (i64& layer : model.post_norm_freq) layer = 1 - layer;
  recurrent.linear_allow_neg_eigval = config.flag("linear_allow_neg_eigval", true);
  if (model.norm_epsilon != kScanNormEpsilon) recurrent.linear_norm_epsilon = kScanNormEpsilon;
  return model;
}

OrderedJson write_olmo_hybrid(const ModelConfig& m, const Family& family) {
  OrderedJson json = write_llama(m, family);
  if (m.position_embedding_type == PositionEmbedding::None) json["rope_theta"] = nullptr;
  add_linear_attention(m, json);
  json["linear_allow_neg_eigval"] = m.recurrent.linear_allow_neg_eigval;
  json["pad_token_id"] = nullptr;  // the default is 100277, even for a smaller vocabulary
  return json;
}

namespace {

/// Names in kimi_linear of keys of deepseek_v3. transformers reads both names.
constexpr KeyAlias kKimiAliases[]{{"max_position_embeddings", "model_max_length"},
                                  {"n_routed_experts", "num_experts"},
                                  {"num_experts_per_tok", "num_experts_per_token"},
                                  {"n_shared_experts", "num_shared_experts"},
                                  {"n_group", "num_expert_group"},
                                  {"norm_topk_prob", "moe_renormalize"},
                                  {"scoring_func", "moe_router_activation_func"}};

/// Returns, for each layer, whether it has Kimi Delta Attention, from layer_types or else from linear_attn_config,
/// where the number of the first layer is 1.
std::vector<bool> parse_kda_layers(const ConfigJson& config, i64 layers) {
  constexpr const char *kKdaLayers = "kda_layers", *kFullLayers = "full_attn_layers";
  if (config.find("layer_types")) return parse_linear_layers(config, layers, {});
  const std::optional<ConfigJson> linear = config.object("linear_attn_config");
  const bool has_lists = linear && linear->find(kKdaLayers) && linear->find(kFullLayers);
  config.require(has_lists, "linear_attn_config", "without the lists kda_layers and full_attn_layers",
                 "both lists, or the key layer_types");
  std::vector<i64> counts(static_cast<std::size_t>(layers));
  std::vector<bool> selected(counts.size());
  for (const char* key : {kFullLayers, kKdaLayers}) {
    for (const Json& layer : linear->array(key)) {
      const bool is_valid = layer.is_number_integer() && layer >= 1 && layer <= layers;
      linear->require(is_valid, key, layer.dump(), "numbers of layers, from 1 to num_hidden_layers");
      const auto index = layer.get<std::size_t>() - 1;
      selected[index] = key == kKdaLayers;
      linear->require(++counts[index] == 1, key, str("a list that repeats layer ", index + 1),
                      "each layer once, in kda_layers or in full_attn_layers");
    }
  }
  const auto missing = std::ranges::find(counts, 0);
  linear->require(missing == counts.end(), kKdaLayers, str("a list without layer ", missing - counts.begin() + 1),
                  "each layer once, in kda_layers or in full_attn_layers");
  return selected;
}

/// Throws if an option of Kimi K3, which has the same model type, is used.
void reject_kimi_options(const ConfigJson& config) {
  for (const char* key : {"mla_use_output_gate", "latent_moe_use_norm"})
    config.require(!config.flag(key, false), key, "true", "false");
  for (const char* key : {"attn_res_block_size", "routed_expert_hidden_size"}) {
    const i64 size = config.count(key, 0);
    config.require(size == 0, key, size, "0");
  }
  if (const std::optional<ConfigJson> linear = config.object("linear_attn_config")) {
    linear->require(!linear->find("gate_lower_bound"), "gate_lower_bound", "set", "null");
    linear->require(!linear->flag("use_full_rank_gate", false), "use_full_rank_gate", "true", "false");
  }
  config.require(config.flag("mla_use_nope", true), "mla_use_nope", "false", "true");
}

/// Sets the sizes of Kimi Delta Attention from linear_attn_config or else from the keys that transformers writes.
void parse_kda_sizes(const ConfigJson& config, RecurrentConfig& sizes) {
  const auto size = [&](const char* key, const char* other_key, i64 absent) {
    const std::optional<ConfigJson> linear = config.object("linear_attn_config");
    return linear && linear->find(key) ? linear->integer(key) : config.integer(other_key, absent);
  };
  sizes.linear_num_key_heads = sizes.linear_num_value_heads = size("num_heads", "linear_num_heads", 32);
  sizes.linear_key_head_dim = sizes.linear_value_head_dim = size("head_dim", "linear_head_dim", 128);
  sizes.linear_conv_kernel_dim = size("short_conv_kernel_size", "linear_conv_kernel_dim", 4);
}

}  // namespace

ModelConfig parse_kimi_linear(const ConfigJson& config, const Family& family) {
  reject_kimi_options(config);
  ModelConfig model = parse_deepseek(config.with_aliases(kKimiAliases), family);
  if (model.num_layers > kMaxLayers) return model;  // rejected later with other values out of range
  const std::vector<bool> linear = parse_kda_layers(config, model.num_layers);
  if (std::ranges::count(linear, true) == 0) return model;
  parse_kda_sizes(config, model.recurrent);
  model.recurrent.linear_attention_freq = all_but_every_nth(linear);
  model.recurrent.linear_attention_type = LinearAttentionType::KimiDeltaAttention;
  return model;
}

OrderedJson write_kimi_linear(const ModelConfig& m, const Family& family) {
  OrderedJson json;
  const OrderedJson deepseek = write_deepseek(m, family);
  for (const auto& [key, value] : deepseek.items()) {
    const auto* it = std::ranges::find(kKimiAliases, key, &KeyAlias::key);
    json[it == std::end(kKimiAliases) ? key : it->alias] = value;
  }
  for (const char* key : {"rope_theta", "rope_scaling"}) json.erase(key);
  OrderedJson linear{{"kda_layers", OrderedJson::array()}, {"full_attn_layers", OrderedJson::array()}};
  for (i64 layer = 0; layer < m.num_layers; ++layer)
    linear[block_spec(m, layer).recurrent() ? "kda_layers" : "full_attn_layers"].push_back(layer + 1);
  linear.update({{"num_heads", m.recurrent.linear_num_key_heads},
                 {"head_dim", m.recurrent.linear_key_head_dim},
                 {"short_conv_kernel_size", m.recurrent.linear_conv_kernel_dim}});
  json["linear_attn_config"] = linear;
  json.update({{"mla_use_nope", true},
               {"moe_router_activation_func", "sigmoid"},
               {"moe_layer_freq", 1},
               {"use_grouped_topk", true},
               {"num_nextn_predict_layers", 0},
               {"pad_token_id", nullptr}});  // the default is 163839, even for a smaller vocabulary
  return json;
}

}  // namespace mcpp
