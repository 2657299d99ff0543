#include "model/config/config.h"

#include <algorithm>
#include <cmath>

#include "base/strings.h"

namespace mcpp {
namespace {

/// Appends conflicts of window_size and window_attn_skip_freq.
void add_window_conflicts(const ModelConfig& m, std::vector<std::string>& errors) {
  const auto& window = m.window_size;
  const auto& layers = m.window_attn_skip_freq;
  if (!window.empty() && (window.size() != 2 || window[1] != 0)) {
    errors.push_back(
        "model.window_size: must be [before, 0], the number of keys that a query sees before its own and, in a causal "
        "model, none after");
  }
  if (layers.empty()) return;
  if (window.empty()) errors.push_back("model.window_attn_skip_freq: only read when window_size is set");
  if (layers.size() == 1) {
    if (layers[0] == 0) errors.push_back("model.window_attn_skip_freq: [n] must be at least 1");
  } else if (static_cast<i64>(layers.size()) != m.num_layers) {
    errors.push_back(str("model.window_attn_skip_freq: has ", layers.size(),
                         " values; must have one, or one for each of the ", m.num_layers, " layers"));
  } else if (std::ranges::any_of(layers, [](i64 x) { return x > 1; })) {
    errors.push_back("model.window_attn_skip_freq: each entry must be 1 (window) or 0 (all keys)");
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
  m.rope_scaling.add_conflicts(has_rope, errors);
}

void add_norm_conflicts(const ModelConfig& m, std::vector<std::string>& errors) {
  if (!m.qk_layernorm_all_heads) return;
  if (!m.qk_layernorm) errors.push_back("model.qk_layernorm_all_heads: only read when qk_layernorm is true");
  if (m.normalization != Normalization::RMSNorm)
    errors.push_back("model.qk_layernorm_all_heads: needs normalization = \"RMSNorm\"");
}

}  // namespace

double ModelConfig::softmax_scale() const {
  return 1 / std::sqrt(query_pre_attn_scalar > 0 ? query_pre_attn_scalar : static_cast<double>(head_dim()));
}

std::vector<std::string> ModelConfig::conflicts() const {
  std::vector<std::string> errors;
  if (kv_channels == 0 && hidden_size % num_attention_heads != 0) {
    errors.push_back(str("model.num_attention_heads: hidden_size ", hidden_size, " is not divisible by ",
                         num_attention_heads, " heads; change one of them or set model.kv_channels"));
  }
  if (num_attention_heads % query_groups() != 0) {
    errors.push_back(str("model.num_query_groups: ", num_attention_heads, " heads cannot be shared evenly by ",
                         query_groups(), " groups; use a divisor of num_attention_heads"));
  }
  add_rope_conflicts(*this, errors);
  add_window_conflicts(*this, errors);
  add_norm_conflicts(*this, errors);
  moe.add_conflicts(num_layers, errors);
  if (max_position_embeddings > 0 && max_position_embeddings < seq_length) {
    errors.push_back(
        str("model.max_position_embeddings: ", max_position_embeddings, " is below seq_length ", seq_length));
  }
  return errors;
}

}  // namespace mcpp
