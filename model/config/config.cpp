#include "model/config/config.h"

#include <algorithm>
#include <cmath>

#include "base/strings.h"

namespace mcpp {
namespace {

/// Appends conflicts of a list that selects layers: [n], or one entry per layer with the value 1 or 0.
void add_selection_conflicts(const char* key, const std::vector<i64>& layers, i64 num_layers, const char* meanings,
                             std::vector<std::string>& errors) {
  if (layers.size() == 1) {
    if (layers[0] == 0) errors.push_back(str("model.", key, ": [n] must be at least 1"));
  } else if (!layers.empty() && static_cast<i64>(layers.size()) != num_layers) {
    errors.push_back(str("model.", key, ": has ", layers.size(), " values; must have one, or one for each of the ",
                         num_layers, " layers"));
  } else if (std::ranges::any_of(layers, [](i64 x) { return x > 1; })) {
    errors.push_back(str("model.", key, ": each entry must be ", meanings));
  }
}

/// Appends conflicts of window_size and window_attn_skip_freq.
void add_window_conflicts(const ModelConfig& m, std::vector<std::string>& errors) {
  const auto& window = m.window_size;
  if (!window.empty() && (window.size() != 2 || window[1] != 0)) {
    errors.push_back(
        "model.window_size: must be [before, 0], the number of keys that a query sees before its own and, in a causal "
        "model, none after");
  }
  if (window.empty() && !m.window_attn_skip_freq.empty())
    errors.push_back("model.window_attn_skip_freq: only read when window_size is set");
  add_selection_conflicts("window_attn_skip_freq", m.window_attn_skip_freq, m.num_layers, "1 (window) or 0 (all keys)",
                          errors);
}

/// Appends conflicts of hybrid_layer_pattern.
void add_pattern_conflicts(const ModelConfig& m, std::vector<std::string>& errors) {
  const std::string& pattern = m.hybrid_layer_pattern;
  if (pattern.empty()) return;
  const auto add = [&](const auto&... text) { errors.push_back(str("model.hybrid_layer_pattern: ", text...)); };
  if (const std::size_t bad = pattern.find_first_not_of("*MGK-E"); bad != std::string::npos)
    add("must consist of * (attention), M (Mamba-2), G (Gated DeltaNet), K (Kimi Delta Attention), - (MLP) and E "
        "(experts), not ",
        pattern.substr(bad, 1), " (character ", bad + 1, ")");
  if (static_cast<i64>(pattern.size()) != m.num_layers)
    add("has ", pattern.size(), " characters; must have one for each of the num_layers = ", m.num_layers, " layers");
  if (m.moe.num_experts == 0 && pattern.find('E') != std::string::npos)
    add("E needs num_experts; set it, or use - instead");
  if (m.moe.num_experts > 0 && pattern.find('E') == std::string::npos)
    add("has no E, so that no layer has the num_experts experts; add one, or remove num_experts");
  if (m.moe.layer_freq != MoeConfig().layer_freq) add("replaces moe_layer_freq; remove one of them");
  if (!m.recurrent.linear_attention_freq.empty()) add("replaces linear_attention_freq; remove one of them");
  if (m.use_parallel_residual) add("layers with one branch cannot run it in parallel; remove use_parallel_residual");
}

/// Appends conflicts of a size given as a list. Returns false if the list does not match the layers.
bool add_list_conflicts(const char* key, const PerLayer<i64>& sizes, i64 num_layers, std::vector<std::string>& errors) {
  if (!sizes.is_list()) return true;
  const auto count = static_cast<i64>(sizes.values().size());
  if (count != num_layers)
    errors.push_back(
        str("model.", key, ": has ", count, " values; must have one, or one for each of the ", num_layers, " layers"));
  else if (std::ranges::min(sizes.values()) < 1)
    errors.push_back(str("model.", key, ": each value of a list must be at least 1"));
  return count == num_layers;
}

/// Appends conflicts of the sizes that may differ by layer.
void add_size_conflicts(const ModelConfig& m, std::vector<std::string>& errors) {
  const PerLayer<i64>& heads = m.num_attention_heads;
  bool matches = add_list_conflicts("num_attention_heads", heads, m.num_layers, errors);
  matches = add_list_conflicts("num_query_groups", m.num_query_groups, m.num_layers, errors) && matches;
  matches = add_list_conflicts("ffn_hidden_size", m.ffn_hidden_size, m.num_layers, errors) && matches;
  if (heads.is_list() && m.kv_channels == 0 && !m.mla.is_used)
    errors.push_back("model.kv_channels: must be set if num_attention_heads is a list");
  else if (m.kv_channels == 0 && !m.mla.is_used && m.hidden_size % heads.first() != 0)
    errors.push_back(str("model.num_attention_heads: hidden_size ", m.hidden_size, " is not divisible by ",
                         heads.first(), " heads; change one of them or set model.kv_channels"));
  if (m.ffn_hidden_size.is_list() && m.moe.num_experts > 0 && m.moe.ffn_hidden_size == 0)
    errors.push_back("model.moe_ffn_hidden_size: must be set if ffn_hidden_size is a list");
  // num_layers may still be out of range here, unless it is the length of a list.
  const i64 kinds = heads.is_list() || m.num_query_groups.is_list() ? m.num_layers : 1;
  for (i64 layer = 0; matches && layer < kinds; ++layer) {
    const i64 layer_heads = heads.of_layer(layer), groups = m.query_groups(layer);
    if (groups < 1 || layer_heads % groups == 0) continue;
    errors.push_back(str("model.num_query_groups: ", layer_heads, " heads cannot be shared evenly by ", groups,
                         " groups; use a divisor of num_attention_heads"));
    break;
  }
}

/// Appends conflicts of keys that are only read with RoPE.
void add_rope_conflicts(const ModelConfig& m, std::vector<std::string>& errors) {
  const bool has_rope = m.position_embedding_type == PositionEmbedding::Rope;
  if (has_rope && m.rotary_dim() == 0) {
    errors.push_back(
        str("model.rotary_percent: ", m.rotary_percent, " of ", m.head_dim(), " channels leaves nothing to rotate"));
  }
  const ModelConfig defaults;
  const auto only_with_rope = [&](bool is_set, const char* key) {
    if (is_set && !has_rope)
      errors.push_back(str("model.", key, ": only read when position_embedding_type is \"rope\""));
  };
  only_with_rope(m.rotary_base != defaults.rotary_base, "rotary_base");
  only_with_rope(m.rotary_percent != defaults.rotary_percent, "rotary_percent");
  only_with_rope(m.rope_local_base_freq != defaults.rope_local_base_freq, "rope_local_base_freq");
  if (m.rope_local_base_freq > 0 && m.rope_local_base_freq <= 1)
    errors.push_back(str("model.rope_local_base_freq: ", m.rope_local_base_freq, " must be above 1, or 0"));
  if (m.rope_local_base_freq > 0 && m.window_size.empty())
    errors.push_back("model.rope_local_base_freq: only read when window_size is set");
  only_with_rope(!m.no_rope_freq.empty(), "no_rope_freq");
  add_selection_conflicts("no_rope_freq", m.no_rope_freq, m.num_layers, "1 (no RoPE) or 0 (RoPE)", errors);
  m.rope_scaling.add_conflicts(has_rope, errors);
}

/// Appends conflicts of attention keys that apply only to layers with RoPE or only to layers without RoPE.
void add_attention_conflicts(const ModelConfig& m, std::vector<std::string>& errors) {
  const ModelConfig defaults;
  const bool has_rope = m.position_embedding_type == PositionEmbedding::Rope;
  const auto only_with_rope = [&](bool is_set, const char* key) {
    if (is_set && !has_rope)
      errors.push_back(str("model.", key, ": only read when position_embedding_type is \"rope\""));
  };
  only_with_rope(m.attention_chunk_size > 0, "attention_chunk_size");
  only_with_rope(m.qk_l2_norm, "qk_l2_norm");
  if (m.attention_chunk_size > 0 && !m.window_size.empty())
    errors.push_back("model.attention_chunk_size: excludes window_size; remove one of them");
  if (m.attn_temperature_tuning && has_rope && m.no_rope_freq.empty())
    errors.push_back("model.attn_temperature_tuning: only read in layers without RoPE; set no_rope_freq");
  if (m.attn_temperature_tuning && m.head_dim() % 2 != 0)
    errors.push_back(str("model.attn_temperature_tuning: needs an even head width, not ", m.head_dim()));
  const auto only_with_tuning = [&](bool is_set, const char* key) {
    if (is_set && !m.attn_temperature_tuning)
      errors.push_back(str("model.", key, ": only read when attn_temperature_tuning is true"));
  };
  only_with_tuning(m.attn_temperature_floor_scale != defaults.attn_temperature_floor_scale,
                   "attn_temperature_floor_scale");
  only_with_tuning(m.attn_temperature_scale != defaults.attn_temperature_scale, "attn_temperature_scale");
  add_selection_conflicts("attention_output_gate", m.attention_output_gate, m.num_layers, "1 (gate) or 0 (no gate)",
                          errors);
}

void add_activation_conflicts(const ModelConfig& m, std::vector<std::string>& errors) {
  if (m.is_gated()) return;
  constexpr const char* kGated = ": only read when activation_func is \"swiglu\", \"geglu\" or \"quick_geglu\"";
  if (m.activation_func_clamp_value > 0) errors.push_back(str("model.activation_func_clamp_value", kGated));
  if (m.glu_linear_offset != 0) errors.push_back(str("model.glu_linear_offset", kGated));
}

void add_norm_conflicts(const ModelConfig& m, std::vector<std::string>& errors) {
  if (!m.post_norm_freq.empty() && m.norm_position != NormPosition::Pre)
    errors.push_back("model.post_norm_freq: only read when norm_position is \"pre\"");
  add_selection_conflicts("post_norm_freq", m.post_norm_freq, m.num_layers,
                          "1 (norms after attention and MLP) or 0 (before)", errors);
  if (!m.qk_layernorm_all_heads) return;
  if (!m.qk_layernorm) errors.push_back("model.qk_layernorm_all_heads: only read when qk_layernorm is true");
  if (m.normalization != Normalization::RMSNorm)
    errors.push_back("model.qk_layernorm_all_heads: needs normalization = \"RMSNorm\"");
}

/// Returns true if `pattern` is one mixer, one feed-forward part, or one of each in this order.
bool is_one_layer(const std::string& pattern) {
  constexpr std::string_view kMixers = "*MGK", kFeedForward = "-E";
  const bool has_mixer = !pattern.empty() && kMixers.find(pattern[0]) != std::string_view::npos;
  const std::string rest = pattern.substr(has_mixer ? 1 : 0);
  return rest.empty() ? has_mixer : rest.size() == 1 && kFeedForward.find(rest[0]) != std::string_view::npos;
}

/// Appends conflicts of mtp_hybrid_layer_pattern.
void add_mtp_pattern_conflicts(const ModelConfig& m, std::vector<std::string>& errors) {
  const std::string& pattern = m.mtp_hybrid_layer_pattern;
  if (pattern.empty()) return;
  const auto has = [&](char branch) { return pattern.find(branch) != std::string::npos; };
  const auto model_has = [&](char branch) { return m.hybrid_layer_pattern.find(branch) != std::string::npos; };
  const auto lacks_linear = [&](char branch, LinearAttentionType type) {
    const bool is_selected = !m.recurrent.linear_attention_freq.empty() && m.recurrent.linear_attention_type == type;
    return has(branch) && !model_has(branch) && !is_selected;
  };
  const auto add = [&](const auto&... text) {
    errors.push_back(str("model.mtp_hybrid_layer_pattern: \"", pattern, "\" ", text...));
  };
  if (!is_one_layer(pattern))
    return add(
        "must be a mixer (* attention, M Mamba-2, G Gated DeltaNet, K Kimi Delta Attention), a feed-forward part (- "
        "MLP, E experts), or one of each in this order");
  if (has('E') && m.moe.num_experts == 0) add("needs num_experts; set it, or use - instead of E");
  if (has('M') && !model_has('M')) add("needs a layer with Mamba-2 in hybrid_layer_pattern; use * instead of M");
  if (lacks_linear('G', LinearAttentionType::GatedDeltaNet))
    add("needs a layer with Gated DeltaNet (linear_attention_freq, or G in hybrid_layer_pattern); use * instead of G");
  if (lacks_linear('K', LinearAttentionType::KimiDeltaAttention))
    add("needs a layer with Kimi Delta Attention (linear_attention_freq with linear_attention_type, or K in "
        "hybrid_layer_pattern); use * instead of K");
  if (m.use_parallel_residual && pattern.size() == 1)
    add("is one branch, which cannot run in parallel; add the other branch, or remove use_parallel_residual");
}

void add_mtp_conflicts(const ModelConfig& m, std::vector<std::string>& errors) {
  if (m.mtp_num_layers == 0) {
    if (!m.mtp_hybrid_layer_pattern.empty())
      errors.push_back("model.mtp_hybrid_layer_pattern: only read when mtp_num_layers is set");
    if (m.mtp_loss_scaling_factor != ModelConfig().mtp_loss_scaling_factor)
      errors.push_back("model.mtp_loss_scaling_factor: only read when mtp_num_layers is set");
    return;
  }
  if (m.position_embedding_type == PositionEmbedding::LearnedAbsolute)
    errors.push_back("model.mtp_num_layers: needs position_embedding_type = \"rope\" or \"none\"");
  if (m.mtp_num_layers >= m.seq_length)
    errors.push_back(str("model.mtp_num_layers: ", m.mtp_num_layers, " must be below seq_length ", m.seq_length));
  add_mtp_pattern_conflicts(m, errors);
}

/// Appends conflicts of multi-latent attention with keys of other kinds of attention.
void add_latent_conflicts(const ModelConfig& m, std::vector<std::string>& errors) {
  if (!m.mla.is_used) return m.mla.add_unread_keys(errors);
  const auto unless = [&](bool holds, const char* key, const auto&... why) {
    if (!holds) errors.push_back(str("model.", key, ": with multi_latent_attention ", why...));
  };
  const bool has_no_positions = m.position_embedding_type == PositionEmbedding::None;
  unless(m.position_embedding_type == PositionEmbedding::Rope || has_no_positions, "position_embedding_type",
         "must be \"rope\" or \"none\", not \"", enum_name(m.position_embedding_type), "\"");
  unless(has_no_positions || m.mla.qk_pos_emb_head_dim % 2 == 0, "qk_pos_emb_head_dim",
         "must be even, because RoPE rotates pairs");
  unless(m.rotary_percent == 1, "rotary_percent", "must be 1; qk_pos_emb_head_dim is the part that RoPE rotates");
  unless(m.rope_local_base_freq == 0, "rope_local_base_freq", "must be 0");
  unless(m.kv_channels == 0 || m.kv_channels == m.head_dim(), "kv_channels",
         "is not read; set qk_head_dim, qk_pos_emb_head_dim and v_head_dim instead");
  unless(m.num_query_groups == PerLayer<i64>(0) || m.num_query_groups == m.num_attention_heads, "num_query_groups",
         "each head has its own key; remove it");
  unless(!m.qk_layernorm, "qk_layernorm", "is not read: latents are always normalized; remove it");
  unless(m.attention_output_gate.empty(), "attention_output_gate", "must be []");
  unless(m.softmax_type == SoftmaxType::Vanilla, "softmax_type", "must be \"vanilla\"");
  unless(!m.qk_l2_norm, "qk_l2_norm", "must be false");
  unless(!m.attn_temperature_tuning, "attn_temperature_tuning", "must be false");
  unless(m.attention_chunk_size == 0, "attention_chunk_size", "must be 0");
  unless(!m.add_qkv_bias, "add_qkv_bias", "must be false: projections to queries, keys and values have no biases");
}

}  // namespace

void MultiLatentConfig::add_unread_keys(std::vector<std::string>& errors) const {
  const MultiLatentConfig defaults;
  std::vector<std::string> names;
  const auto add = [&](bool is_set, const char* key) {
    if (is_set) names.emplace_back(key);
  };
  add(q_lora_rank != defaults.q_lora_rank, "q_lora_rank");
  add(kv_lora_rank != defaults.kv_lora_rank, "kv_lora_rank");
  add(qk_head_dim != defaults.qk_head_dim, "qk_head_dim");
  add(qk_pos_emb_head_dim != defaults.qk_pos_emb_head_dim, "qk_pos_emb_head_dim");
  add(v_head_dim != defaults.v_head_dim, "v_head_dim");
  add(latent_norm_epsilon != defaults.latent_norm_epsilon, "latent_norm_epsilon");
  for (const std::string& name : names)
    errors.push_back(str("model.", name, ": only read when multi_latent_attention is true"));
}

double ModelConfig::softmax_scale() const {
  if (mup.is_used) {
    const double base = mup.base_head_dim > 0 ? static_cast<double>(mup.base_head_dim) : 1;
    return std::sqrt(base) / std::pow(static_cast<double>(head_dim()), mup.attn_scale_power);
  }
  const i64 width = mla.is_used ? mla.query_dim() : head_dim();
  const double scale = 1 / std::sqrt(query_pre_attn_scalar > 0 ? query_pre_attn_scalar : static_cast<double>(width));
  return mla.is_used ? scale * rope_scaling.score_factor() : scale;
}

std::vector<std::string> ModelConfig::conflicts() const {
  std::vector<std::string> errors;
  add_size_conflicts(*this, errors);
  add_pattern_conflicts(*this, errors);
  add_rope_conflicts(*this, errors);
  add_window_conflicts(*this, errors);
  add_norm_conflicts(*this, errors);
  add_latent_conflicts(*this, errors);
  add_mtp_conflicts(*this, errors);
  add_selection_conflicts("linear_attention_freq", recurrent.linear_attention_freq, num_layers,
                          "1 (Gated DeltaNet) or 0 (attention)", errors);
  recurrent.add_conflicts(hidden_size, hybrid_layer_pattern, errors);
  add_attention_conflicts(*this, errors);
  add_activation_conflicts(*this, errors);
  moe.add_conflicts(num_layers, errors);
  mup.add_conflicts(*this, errors);
  if (max_position_embeddings > 0 && max_position_embeddings < seq_length) {
    errors.push_back(
        str("model.max_position_embeddings: ", max_position_embeddings, " is below seq_length ", seq_length));
  }
  return errors;
}

void resolve_sizes(ModelConfig& config) {
  const i64 lists = std::max(config.num_attention_heads.values().size(), config.num_query_groups.values().size());
  std::vector<i64> groups;
  for (i64 layer = 0; layer < lists; ++layer) groups.push_back(config.query_groups(layer));
  config.num_query_groups = PerLayer(std::move(groups));
  if (config.ffn_hidden_size == PerLayer<i64>(0)) config.ffn_hidden_size = config.ffn(0);
}

}  // namespace mcpp
