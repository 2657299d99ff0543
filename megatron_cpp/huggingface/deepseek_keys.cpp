// Conversion of DeepSeek's config.json: multi-latent attention, and the experts of V2, V3 and the types derived from
// V3.
#include <algorithm>
#include <cmath>

#include "megatron_cpp/huggingface/config_keys.h"
#include "model/config/block_spec.h"

namespace mcpp {
namespace {

/// Defaults of transformers for absent keys of experts.
struct ExpertDefaults {
  i64 experts = 0, topk = 0;  ///< 0: none
  i64 ffn = 1408, shared = 0, first_dense = 0, groups = 1, group_topk = 1;
  bool normalizes = false;
  double scale = 1;
};

ExpertDefaults defaults_of(ExpertKeys keys) {
  switch (keys) {
    case ExpertKeys::DeepSeekV2:
      return {.experts = 64, .ffn = 1407, .shared = 2};
    case ExpertKeys::DeepSeekV3:
      return {.experts = 256,
              .topk = 8,
              .ffn = 2048,
              .shared = 1,
              .first_dense = 3,
              .groups = 8,
              .group_topk = 4,
              .normalizes = true,
              .scale = 2.5};
    case ExpertKeys::Glm4MoeLite:
      return {.experts = 64, .topk = 4, .ffn = 1536, .shared = 1, .first_dense = 1, .normalizes = true, .scale = 1.8};
    case ExpertKeys::KimiLinear:
      return {
          .experts = 256, .topk = 8, .ffn = 1024, .shared = 1, .first_dense = 1, .normalizes = true, .scale = 2.446};
    default:
      return {};
  }
}

i64 integer_or(const ConfigJson& config, const char* key, i64 absent) {
  return absent > 0 ? config.integer(key, absent) : config.integer(key);
}

/// Returns MoeConfig::layer_freq for experts in all layers after the first `dense` layers.
std::vector<i64> all_but_first(i64 dense, i64 num_layers) {
  if (dense == 0) return {1};
  std::vector<i64> layers(static_cast<std::size_t>(num_layers), 1);
  std::fill_n(layers.begin(), std::min(dense, num_layers), 0);
  return layers;
}
i64 count_first_dense(const ModelConfig& m) {
  i64 layer = 0;
  while (layer < m.num_layers && !block_spec(m, layer).moe()) ++layer;
  return layer;
}

/// Returns MoeConfig::layer_freq from mlp_layer_types or, if it is absent, for experts after `first_dense` layers.
std::vector<i64> parse_mlp_types(const ConfigJson& config, i64 num_layers, i64 first_dense) {
  if (!config.find("mlp_layer_types")) return all_but_first(first_dense, num_layers);
  std::vector<i64> layers;
  for (const Json& type : config.array("mlp_layer_types")) {
    config.require(type == "sparse" || type == "dense", "mlp_layer_types", type.dump(), "sparse, dense");
    layers.push_back(type == "sparse" ? 1 : 0);
  }
  config.require(static_cast<i64>(layers.size()) == num_layers, "mlp_layer_types", str("of ", layers.size(), " layers"),
                 "one for each of num_hidden_layers");
  if (std::ranges::all_of(layers, [](i64 x) { return x == 1; })) return {1};
  return layers;
}

/// Sets the router of V2, where the score of a group is the score of its best expert.
void parse_v2_router(const ConfigJson& config, MoeConfig& moe) {
  moe.router_pre_softmax = true;
  const std::string method = config.text("topk_method", "greedy");
  config.require(method == "greedy" || method == "group_limited_greedy", "topk_method", method,
                 "greedy, group_limited_greedy");
  config.require(!config.flag("norm_topk_prob", false), "norm_topk_prob", "true", "false");
  const std::string score = config.text("scoring_func", "softmax");
  config.require(score == "softmax", "scoring_func", score, "softmax");
  if (method == "greedy") return;
  moe.router_num_groups = config.integer("n_group");
  moe.router_group_topk = config.integer("topk_group");
  moe.router_group_score_topk = 1;
}

void parse_latent_attention(const ConfigJson& config, const LlamaTraits& traits, ModelConfig& model) {
  constexpr double kLatentNormEpsilon = 1e-6;  // fixed in transformers
  MultiLatentConfig& mla = model.mla;
  mla.is_used = true;
  const bool is_null = config.has_key("q_lora_rank") && !config.find("q_lora_rank");
  mla.q_lora_rank = is_null || !config.find("q_lora_rank") ? traits.q_lora_rank : config.integer("q_lora_rank");
  if (is_null) mla.q_lora_rank = 0;
  const bool is_glm = traits.experts == ExpertKeys::Glm4MoeLite;
  mla.kv_lora_rank = config.integer("kv_lora_rank", 512);
  mla.qk_head_dim = config.integer("qk_nope_head_dim", is_glm ? 192 : 128);
  mla.qk_pos_emb_head_dim = config.integer("qk_rope_head_dim", 64);
  mla.v_head_dim = config.integer("v_head_dim", is_glm ? 256 : 128);
  if (model.norm_epsilon != kLatentNormEpsilon) mla.latent_norm_epsilon = kLatentNormEpsilon;
  const i64 heads = model.num_attention_heads.first(), groups = config.integer("num_key_value_heads", heads);
  config.require(groups == heads, "num_key_value_heads", groups, "equal to num_attention_heads");
  config.require(config.flag("rope_interleave", true), "rope_interleave", "false", "true");
  for (const char* key : {"attention_bias", "mlp_bias"}) config.require(!config.flag(key, false), key, "true", "false");
  const double rotated = config.number("partial_rotary_factor", 1);
  config.require(rotated == 1, "partial_rotary_factor", rotated, "1");
}

}  // namespace

/// In V3 the score of a group is the sum of its two best experts.
void parse_v3_router(const ConfigJson& config, const V3RouterDefaults& defaults, MoeConfig& moe) {
  constexpr i64 kBestOfGroup = 2;
  moe.router_score_function = RouterScore::Sigmoid;
  moe.router_enable_expert_bias = true;
  const std::string score = config.text("scoring_func", "sigmoid");
  config.require(score == "sigmoid", "scoring_func", score, "sigmoid");
  const i64 groups = config.integer("n_group", defaults.groups),
            best = config.integer("topk_group", defaults.group_topk);
  if (groups > 1) {
    moe.router_num_groups = groups, moe.router_group_topk = best;
    if (moe.router_topk != kBestOfGroup * best) moe.router_group_score_topk = kBestOfGroup;
  }
  const bool normalizes = config.flag("norm_topk_prob", defaults.normalizes);
  config.require(normalizes == (moe.router_topk > 1), "norm_topk_prob", normalizes ? "true" : "false",
                 "true, or with one expert for each token false");
}

void parse_deepseek_experts(const ConfigJson& config, ExpertKeys keys, ModelConfig& model) {
  constexpr i64 kMaxShared = 100000;
  const ExpertDefaults defaults = defaults_of(keys);
  MoeConfig& moe = model.moe;
  moe.num_experts = integer_or(config, "n_routed_experts", defaults.experts);
  moe.router_topk = integer_or(config, "num_experts_per_tok", defaults.topk);
  moe.ffn_hidden_size = config.integer("moe_intermediate_size", defaults.ffn);
  const i64 shared = integer_or(config, "n_shared_experts", defaults.shared);
  config.require(shared <= kMaxShared, "n_shared_experts", shared, "no more than 100000");
  moe.shared_expert_intermediate_size = shared * moe.ffn_hidden_size;
  const i64 frequency = config.integer("moe_layer_freq", 1);
  config.require(frequency == 1, "moe_layer_freq", frequency, "1");
  const bool is_glm = keys == ExpertKeys::Glm4MoeLite;  // has no key first_k_dense_replace
  const i64 first_dense = is_glm ? defaults.first_dense : config.count("first_k_dense_replace", defaults.first_dense);
  moe.layer_freq = is_glm || keys == ExpertKeys::KimiLinear ? parse_mlp_types(config, model.num_layers, first_dense)
                                                            : all_but_first(first_dense, model.num_layers);
  keys == ExpertKeys::DeepSeekV2
      ? parse_v2_router(config, moe)
      : parse_v3_router(config, {defaults.groups, defaults.group_topk, defaults.normalizes}, moe);
  moe.router_topk_scaling_factor = config.number("routed_scaling_factor", defaults.scale);
  config.require(moe.router_topk_scaling_factor > 0, "routed_scaling_factor", moe.router_topk_scaling_factor,
                 "above 0");
}

void add_deepseek_experts(const ModelConfig& m, ExpertKeys keys, OrderedJson& json) {
  const MoeConfig& moe = m.moe;
  const bool is_v2 = keys == ExpertKeys::DeepSeekV2, has_groups = moe.router_num_groups > 0;
  json.update({{"n_routed_experts", moe.num_experts},
               {"n_shared_experts", moe.shared_expert_intermediate_size / m.moe_ffn()},
               {"moe_intermediate_size", m.moe_ffn()},
               {"n_group", std::max<i64>(moe.router_num_groups, 1)},
               {"topk_group", std::max<i64>(moe.router_group_topk, 1)},
               {"norm_topk_prob", !is_v2 && moe.router_topk > 1},
               {"routed_scaling_factor", moe.routing().scale}});
  if (is_v2) json["topk_method"] = has_groups ? "group_limited_greedy" : "greedy";
  const i64 first_dense = count_first_dense(m);
  if (keys != ExpertKeys::Glm4MoeLite) json["first_k_dense_replace"] = first_dense;
  const bool has_dense_later = [&] {
    for (i64 layer = first_dense; layer < m.num_layers; ++layer)
      if (!block_spec(m, layer).moe()) return true;
    return false;
  }();
  if (keys != ExpertKeys::Glm4MoeLite && (keys != ExpertKeys::KimiLinear || !has_dense_later)) return;
  OrderedJson types = OrderedJson::array();
  for (i64 layer = 0; layer < m.num_layers; ++layer) types.push_back(block_spec(m, layer).moe() ? "sparse" : "dense");
  json["mlp_layer_types"] = types;
}

ModelConfig parse_deepseek(const ConfigJson& config, const Family& family) {
  const LlamaTraits& traits = family.traits;
  ModelConfig model;
  model.num_layers = config.integer("num_hidden_layers");
  model.hidden_size = config.integer("hidden_size");
  model.ffn_hidden_size = config.integer("intermediate_size");
  model.num_attention_heads = config.integer("num_attention_heads");
  model.seq_length = model.max_position_embeddings =
      config.integer("max_position_embeddings", traits.max_position_embeddings);
  model.vocab_size = config.integer("vocab_size");
  model.normalization = Normalization::RMSNorm;
  model.norm_epsilon = config.number("rms_norm_eps", traits.rms_norm_eps);
  model.position_embedding_type = traits.has_rope ? PositionEmbedding::Rope : PositionEmbedding::None;
  parse_latent_attention(config, traits, model);
  if (traits.has_rope) parse_rope(config, family, model);
  parse_experts(config, traits.experts, model);
  model.activation_func = ActivationFunction::SwiGLU;
  const std::string activation = config.text("hidden_act", "silu");
  config.require(activation == "silu" || activation == "swish", "hidden_act", activation, "silu");
  model.add_bias_linear = false;
  model.init_method_std = config.number("initializer_range", 0.02);
  model.untie_embeddings_and_output_weights = !config.flag("tie_word_embeddings", false);
  model.hidden_dropout = 0;
  model.attention_dropout = config.number("attention_dropout", 0);
  return model;
}

OrderedJson write_deepseek(const ModelConfig& m, const Family& family) {
  const MultiLatentConfig& mla = m.mla;
  OrderedJson json{{"architectures", OrderedJson::array({family.architecture})},
                   {"model_type", family.model_type},
                   {"vocab_size", m.vocab_size},
                   {"max_position_embeddings", m.max_positions()},
                   {"hidden_size", m.hidden_size},
                   {"intermediate_size", m.max_ffn()},
                   {"num_hidden_layers", m.num_layers},
                   {"num_attention_heads", m.num_attention_heads.first()},
                   {"num_key_value_heads", m.num_attention_heads.first()},
                   {"q_lora_rank", mla.q_lora_rank > 0 ? OrderedJson(mla.q_lora_rank) : OrderedJson()},
                   {"kv_lora_rank", mla.kv_lora_rank},
                   {"qk_nope_head_dim", mla.qk_head_dim},
                   {"qk_rope_head_dim", mla.qk_pos_emb_head_dim},
                   {"v_head_dim", mla.v_head_dim},
                   {"hidden_act", "silu"},
                   {"rms_norm_eps", m.norm_epsilon},
                   {"rope_theta", m.rotary_base},
                   {"rope_scaling", rope_scaling_json(m)},
                   {"attention_bias", false}};
  add_experts(m, family.traits.experts, json);
  json["attention_dropout"] = m.attention_dropout;
  return json;
}

}  // namespace mcpp
