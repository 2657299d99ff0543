// Conversion of config.json for nemotron_h. Each layer has one branch: Mamba-2, attention without RoPE, an MLP, or
// experts.
#include <algorithm>

#include "base/strings.h"
#include "megatron_cpp/huggingface/config_keys.h"
#include "megatron_cpp/huggingface/families.h"
#include "megatron_cpp/huggingface/weight_map.h"
#include "model/config/block_spec.h"

namespace mcpp {
namespace {

/// Kind of layer: its character in patterns, and its name in the lists of transformers 5 and of earlier versions.
struct LayerKind {
  char character;
  std::string_view name, former_name;
};
constexpr LayerKind kLayerKinds[]{
    {'M', "linear_attention", "mamba"}, {'*', "full_attention", "attention"}, {'-', "mlp", "mlp"}, {'E', "moe", "moe"}};

bool has_layer(const std::string& pattern, char kind) {
  return pattern.find(kind) != std::string::npos;
}

/// Returns the kinds of layers from the list `list_key` or, if it is absent, from the text `text_key`. Returns "" if
/// both are absent.
std::string parse_kinds(const ConfigJson& config, const char* list_key, const char* text_key) {
  std::string pattern;
  if (!config.find(list_key)) {
    pattern = config.text(text_key, "");
    config.require(pattern.find_first_not_of("M*-E") == std::string::npos, text_key, pattern,
                   "the characters M, *, -, E");
    return pattern;
  }
  for (const Json& layer : config.array(list_key)) {
    const auto* it = std::ranges::find_if(
        kLayerKinds, [&](const LayerKind& kind) { return layer == kind.name || layer == kind.former_name; });
    config.require(it != std::end(kLayerKinds), list_key, layer.dump(), "linear_attention, full_attention, mlp, moe");
    pattern += it->character;
  }
  return pattern;
}

/// Returns the kinds of all layers from layers_block_type, or layer_types, or hybrid_override_pattern.
std::string parse_pattern(const ConfigJson& config) {
  const char* list_key = config.find("layers_block_type") ? "layers_block_type" : "layer_types";
  const char* key = config.find(list_key) ? list_key : "hybrid_override_pattern";
  const std::string pattern = parse_kinds(config, list_key, "hybrid_override_pattern");
  config.require(!pattern.empty(), key, "empty", "a layer or more");
  const i64 layers = static_cast<i64>(pattern.size()), stated = config.integer("num_hidden_layers", layers);
  config.require(stated == layers, "num_hidden_layers", stated, str("the ", layers, " layers of ", key).c_str());
  return pattern;
}

/// Returns the value of a key that transformers accepts under two names.
i64 integer_of(const ConfigJson& config, const char* key, const char* other, i64 absent) {
  return config.integer(config.find(other) ? other : key, absent);
}

/// Throws unless the limits of time steps are [0, infinity].
void check_time_step_limit(const ConfigJson& config) {
  if (!config.find("time_step_limit")) return;
  const Json& limit = config.array("time_step_limit");
  const Json infinity{{"__float__", "Infinity"}};  // as written by transformers 5
  config.require(limit.size() == 2 && limit[0] == 0 && limit[1] == infinity, "time_step_limit", limit.dump(),
                 "[0, Infinity]");
}

void parse_mamba(const ConfigJson& config, RecurrentConfig& recurrent) {
  recurrent.mamba_state_dim = config.integer("ssm_state_size", 128);
  recurrent.mamba_num_heads = config.integer("mamba_num_heads", 128);
  recurrent.mamba_head_dim = config.integer("mamba_head_dim", 64);
  recurrent.mamba_num_groups = integer_of(config, "n_groups", "mamba_n_groups", 8);
  recurrent.linear_conv_kernel_dim = integer_of(config, "conv_kernel", "mamba_d_conv", 4);
  const std::string activation = config.text("mamba_hidden_act", "silu");
  config.require(activation == "silu" || activation == "swish", "mamba_hidden_act", activation, "silu");
  config.require(config.flag("use_conv_bias", true), "use_conv_bias", "false", "true");
  for (const char* key : {"use_bias", "mamba_proj_bias"})
    config.require(!config.flag(key, false), key, "true", "false");
  check_time_step_limit(config);
}

void parse_nemotron_experts(const ConfigJson& config, MoeConfig& moe) {
  moe.num_experts = integer_of(config, "n_routed_experts", "num_local_experts", 8);
  moe.router_topk = config.integer("num_experts_per_tok", 2);
  moe.ffn_hidden_size = config.integer("moe_intermediate_size", 7688);
  moe.shared_expert_intermediate_size = config.integer("moe_shared_expert_intermediate_size", 7688);
  if (config.find("moe_latent_size")) moe.latent_size = config.integer("moe_latent_size");
  moe.router_topk_scaling_factor = config.number("routed_scaling_factor", 1);
  config.require(moe.router_topk_scaling_factor > 0, "routed_scaling_factor", moe.router_topk_scaling_factor,
                 "above 0");
  parse_v3_router(config, {.groups = 1, .group_topk = 1, .normalizes = true}, moe);
  config.require(!config.flag("mlp_bias", false), "mlp_bias", "true", "false if there are experts, which have none");
}

void add_nemotron_experts(const ModelConfig& m, OrderedJson& json) {
  const MoeConfig& moe = m.moe;
  json.update({{"n_routed_experts", moe.num_experts},
               {"n_shared_experts", 1},
               {"num_experts_per_tok", moe.router_topk},
               {"moe_intermediate_size", m.moe_ffn()},
               {"moe_shared_expert_intermediate_size", moe.shared_expert_intermediate_size},
               {"moe_latent_size", moe.latent_size > 0 ? OrderedJson(moe.latent_size) : OrderedJson()},
               {"n_group", std::max<i64>(moe.router_num_groups, 1)},
               {"topk_group", std::max<i64>(moe.router_group_topk, 1)},
               {"norm_topk_prob", moe.router_topk > 1},
               {"routed_scaling_factor", moe.routing().scale}});
}

}  // namespace

ModelConfig parse_nemotron_h(const ConfigJson& config, const Family&) {
  ModelConfig model;
  model.hybrid_layer_pattern = parse_pattern(config);
  model.num_layers = static_cast<i64>(model.hybrid_layer_pattern.size());
  model.vocab_size = config.integer("vocab_size", 131072);
  model.hidden_size = config.integer("hidden_size", 4096);
  model.ffn_hidden_size = config.integer("intermediate_size", 21504);
  model.num_attention_heads = config.integer("num_attention_heads", 32);
  const bool has_groups = config.find("num_key_value_heads") || !config.has_key("num_key_value_heads");
  model.num_query_groups = has_groups ? config.integer("num_key_value_heads", 8) : model.num_attention_heads.first();
  model.kv_channels = integer_of(config, "head_dim", "attention_head_dim", 128);
  model.seq_length = model.max_position_embeddings = config.integer("max_position_embeddings", 4096);
  model.position_embedding_type = PositionEmbedding::None;
  model.normalization = Normalization::RMSNorm;
  model.norm_epsilon = config.number("layer_norm_epsilon", 1e-5);
  model.activation_func = ActivationFunction::SquaredReLU;
  const std::string activation = config.text("mlp_hidden_act", "relu2");
  config.require(activation == "relu2", "mlp_hidden_act", activation, "relu2");
  // transformers ignores tie_word_embeddings.
  for (const char* key : {"attention_bias", "residual_in_fp32", "tie_word_embeddings"})
    config.require(!config.flag(key, false), key, "true", "false");
  config.require(!config.find("sliding_window"), "sliding_window", "set", "null");
  model.add_bias_linear = false;
  model.add_mlp_bias = config.flag("mlp_bias", false);
  const std::string branches = parse_kinds(config, "mtp_layers_block_type", "mtp_hybrid_override_pattern");
  model.mtp_hybrid_layer_pattern = branches.empty() ? "*E" : branches;
  if (has_layer(model.hybrid_layer_pattern, 'M')) parse_mamba(config, model.recurrent);
  if (has_layer(model.hybrid_layer_pattern, 'E')) parse_nemotron_experts(config, model.moe);
  model.untie_embeddings_and_output_weights = true;
  model.init_method_std = config.number("initializer_range", 0.02);
  model.attention_dropout = config.number("attention_dropout", 0);
  model.hidden_dropout = config.number("hidden_dropout", 0);
  return model;
}

OrderedJson write_nemotron_h(const ModelConfig& m, const Family& family) {
  const RecurrentConfig& recurrent = m.recurrent;
  const bool has_experts = m.moe.num_experts > 0;
  OrderedJson json{{"architectures", OrderedJson::array({family.architecture})},
                   {"model_type", family.model_type},
                   {"vocab_size", m.vocab_size},
                   {"max_position_embeddings", m.max_positions()},
                   {"hidden_size", m.hidden_size},
                   {"intermediate_size", m.max_ffn()},
                   {"num_hidden_layers", m.num_layers},
                   {"hybrid_override_pattern", m.hybrid_layer_pattern},
                   {"num_attention_heads", m.num_attention_heads.first()},
                   {"num_key_value_heads", m.query_groups(0)},
                   {"head_dim", m.head_dim()},
                   {"attention_bias", false},
                   {"mlp_hidden_act", "relu2"},
                   {"mlp_bias", m.mlp_bias() && !has_experts},
                   {"layer_norm_epsilon", m.norm_epsilon},
                   {"residual_in_fp32", false},
                   {"attention_dropout", m.attention_dropout},
                   {"hidden_dropout", m.hidden_dropout}};
  if (has_layer(m.hybrid_layer_pattern, 'M'))
    json.update({{"ssm_state_size", recurrent.mamba_state_dim},
                 {"mamba_num_heads", recurrent.mamba_heads(m.hidden_size)},
                 {"mamba_head_dim", recurrent.mamba_head_dim},
                 {"mamba_hidden_act", "silu"},
                 {"n_groups", recurrent.mamba_num_groups},
                 {"conv_kernel", recurrent.linear_conv_kernel_dim},
                 {"use_conv_bias", true},
                 {"use_bias", false},
                 {"time_step_min", kUnlimitedTimeStep}});
  if (has_experts) add_nemotron_experts(m, json);
  if (m.mtp_num_layers > 0)
    json["mtp_hybrid_override_pattern"] = m.mtp_hybrid_layer_pattern.empty()
                                              ? m.hybrid_layer_pattern.substr(m.hybrid_layer_pattern.size() - 1)
                                              : m.mtp_hybrid_layer_pattern;
  return json;
}

std::vector<std::string> unsupported_hybrid_options(const ModelConfig& m) {
  std::vector<std::string> unsupported;
  const auto has_linear_attention = [](const std::string& pattern) {
    return has_layer(pattern, 'G') || has_layer(pattern, 'K');
  };
  if (has_linear_attention(m.hybrid_layer_pattern)) unsupported.emplace_back("model.hybrid_layer_pattern");
  if (has_linear_attention(m.mtp_hybrid_layer_pattern)) unsupported.emplace_back("model.mtp_hybrid_layer_pattern");
  if (!m.untie_embeddings_and_output_weights) unsupported.emplace_back("model.untie_embeddings_and_output_weights");
  if (m.moe.num_experts > 0 && m.moe.shared_expert_intermediate_size == 0)
    unsupported.emplace_back("model.moe_shared_expert_intermediate_size");
  if (m.moe.num_experts > 0 && m.mlp_bias()) unsupported.emplace_back("model.add_mlp_bias");
  return unsupported;
}

void add_mamba_rows(WeightRule& rule, const ScanShape& shape) {
  struct Section {
    i64 rows, our_row;  ///< of a group
  };
  const i64 states = shape.key_dim, channels = shape.heads_per_group * shape.value_dim;
  // Our rows are C, B, x, z and dt of each group. The foreign rows are z, x, B, C and dt of all groups or, for the
  // convolution, x, B and C of all groups.
  const Section c{states, 0}, b{states, states}, x{channels, 2 * states}, z{channels, shape.conv_width()},
      dt{shape.heads_per_group, shape.conv_width() + channels};
  const i64 width = rule.shape[1];
  const bool is_projection = width == shape.width();
  i64 row = 0;
  for (const Section& section : is_projection ? std::vector{z, x, b, c, dt} : std::vector{x, b, c}) {
    for (i64 group = 0; group < shape.groups; ++group, row += section.rows)
      rule.moves.push_back({0, row, group * width + section.our_row, section.rows});
  }
  Shape& theirs = rule.foreign[0].shape;
  theirs = {row};
  if (rule.shape.size() < 3) return;        // bias of the convolution
  if (!is_projection) theirs.push_back(1);  // weight of the convolution, with one input channel
  theirs.push_back(rule.shape[2]);
}

}  // namespace mcpp
