#include "model/config/mup.h"

#include "base/strings.h"
#include "model/config/block_spec.h"
#include "model/config/config.h"

namespace mcpp {

void MupConfig::add_conflicts(const ModelConfig& model, std::vector<std::string>& errors) const {
  const auto add = [&](const char* key, const auto&... text) { errors.push_back(str("model.", key, ": ", text...)); };
  if (!is_used) {
    const MupConfig defaults;
    constexpr const char* kUnread = "only read when use_mup is true";
    if (base_hidden_size != defaults.base_hidden_size) add("mup_base_hidden_size", kUnread);
    if (output_mult != defaults.output_mult) add("mup_output_mult", kUnread);
    if (base_head_dim != defaults.base_head_dim) add("mup_base_head_dim", kUnread);
    if (attn_scale_power != defaults.attn_scale_power) add("mup_attn_scale_power", kUnread);
    return;
  }
  constexpr const char* kOwnWidths = ", whose inner widths do not follow hidden_size; remove one of them";
  if (model.mla.is_used) add("use_mup", "has no rules for multi_latent_attention", kOwnWidths);
  if (model.moe.latent_size > 0) add("use_mup", "has no rules for moe_latent_size", kOwnWidths);
  const bool has_mixers = !model.recurrent.linear_attention_freq.empty() ||
                          model.hybrid_layer_pattern.find_first_of("MGK") != std::string::npos;
  if (has_mixers)
    add("use_mup", "has no rules for Mamba-2, Gated DeltaNet and Kimi Delta Attention (linear_attention_freq, ",
        "hybrid_layer_pattern)", kOwnWidths);
  if (model.query_pre_attn_scalar > 0)
    add("query_pre_attn_scalar", "with use_mup set mup_base_head_dim and mup_attn_scale_power instead");
}

}  // namespace mcpp
