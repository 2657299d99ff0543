#include "model/config/recurrent.h"

#include "base/strings.h"

namespace mcpp {

void RecurrentConfig::add_conflicts(i64 hidden_size, const std::string& pattern,
                                    std::vector<std::string>& errors) const {
  const bool has_linear = !linear_attention_freq.empty() || pattern.find_first_of("GK") != std::string::npos;
  const bool has_mamba = pattern.find('M') != std::string::npos;
  const RecurrentConfig defaults;
  const auto check_use = [&](bool is_used, const char* layers, const char* key, i64 value, i64 unset) {
    if (!is_used && value != unset) errors.push_back(str("model.", key, ": only read by layers with ", layers));
  };
  constexpr const char* kLinear = "linear attention (G or K in hybrid_layer_pattern, or linear_attention_freq)";
  constexpr const char* kMamba = "Mamba-2 (M in hybrid_layer_pattern)";
  const auto linear = [&](const char* key, i64 RecurrentConfig::*member) {
    check_use(has_linear, kLinear, key, this->*member, defaults.*member);
  };
  const auto mamba = [&](const char* key, i64 RecurrentConfig::*member) {
    check_use(has_mamba, kMamba, key, this->*member, defaults.*member);
  };
  linear("linear_num_key_heads", &RecurrentConfig::linear_num_key_heads);
  linear("linear_num_value_heads", &RecurrentConfig::linear_num_value_heads);
  linear("linear_key_head_dim", &RecurrentConfig::linear_key_head_dim);
  linear("linear_value_head_dim", &RecurrentConfig::linear_value_head_dim);
  const auto only_with_linear = [&](bool is_set, const char* key) {
    if (is_set && !has_linear) errors.push_back(str("model.", key, ": only read by layers with ", kLinear));
  };
  only_with_linear(linear_allow_neg_eigval, "linear_allow_neg_eigval");
  only_with_linear(linear_norm_epsilon != 0, "linear_norm_epsilon");
  if (linear_attention_type != defaults.linear_attention_type && linear_attention_freq.empty())
    errors.emplace_back(
        "model.linear_attention_type: only read by the layers of linear_attention_freq; in hybrid_layer_pattern, K is "
        "Kimi Delta Attention");
  mamba("mamba_state_dim", &RecurrentConfig::mamba_state_dim);
  mamba("mamba_head_dim", &RecurrentConfig::mamba_head_dim);
  mamba("mamba_num_groups", &RecurrentConfig::mamba_num_groups);
  mamba("mamba_num_heads", &RecurrentConfig::mamba_num_heads);
  check_use(has_linear || has_mamba, "linear attention or Mamba-2 (linear_attention_freq or hybrid_layer_pattern)",
            "linear_conv_kernel_dim", linear_conv_kernel_dim, defaults.linear_conv_kernel_dim);
  if (has_linear && linear_num_value_heads % linear_num_key_heads != 0)
    errors.push_back(str("model.linear_num_value_heads: ", linear_num_value_heads,
                         " is not a multiple of linear_num_key_heads = ", linear_num_key_heads));
  if (!has_mamba) return;
  if (mamba_num_heads == 0 && 2 * hidden_size % mamba_head_dim != 0)
    errors.push_back(str("model.mamba_head_dim: ", mamba_head_dim, " does not divide 2 x hidden_size = ",
                         2 * hidden_size, "; change it, or set mamba_num_heads"));
  else if (const i64 heads = mamba_heads(hidden_size); heads < mamba_num_groups || heads % mamba_num_groups != 0)
    errors.push_back(str("model.mamba_num_groups: ", heads, " heads cannot be shared evenly by ", mamba_num_groups,
                         " groups; use a divisor of the number of heads (mamba_num_heads)"));
}

}  // namespace mcpp
