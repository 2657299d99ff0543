// Configuration of layers with a recurrent mixer instead of attention: Gated DeltaNet, Kimi Delta Attention and Mamba-2
// (tensor/ops/scan/scan_shape.h). The keys have the names of Megatron Core.
#pragma once
#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "base/fields.h"
#include "tensor/ops/scan/scan_shape.h"

namespace mcpp {

/// Mixer of the layers that linear_attention_freq selects.
enum class LinearAttentionType : u8 { GatedDeltaNet, KimiDeltaAttention };

template <>
struct EnumNames<LinearAttentionType> {
  static constexpr std::array<std::string_view, 2> value{"gated_delta_net", "kimi_delta_attention"};
};

struct RecurrentConfig {
  std::vector<i64> linear_attention_freq = {};
  LinearAttentionType linear_attention_type = LinearAttentionType::GatedDeltaNet;
  i64 linear_num_key_heads = 16;
  i64 linear_num_value_heads = 32;
  i64 linear_key_head_dim = 128;
  i64 linear_value_head_dim = 128;
  i64 linear_conv_kernel_dim = 4;
  bool linear_allow_neg_eigval = false;
  double linear_norm_epsilon = 0;
  i64 mamba_state_dim = 128;
  i64 mamba_head_dim = 64;
  i64 mamba_num_groups = 8;
  i64 mamba_num_heads = 0;

  template <class Self, class Visitor>
  static void fields(Self& self, Visitor& visit) {
    visit(
        "linear_attention_freq", self.linear_attention_freq,
        "layers with linear attention (linear_attention_type) instead of attention: [n] = all but every n-th layer, or "
        "a list of 1 (linear attention) and 0 (attention); [] = none",
        between(0, 1e5));
    visit("linear_attention_type", self.linear_attention_type,
          "linear attention of the layers that linear_attention_freq selects: Gated DeltaNet, or Kimi Delta Attention, "
          "in which each key channel has its own decay");
    visit("linear_num_key_heads", self.linear_num_key_heads, "query and key heads of linear attention",
          between(1, 1e5));
    visit("linear_num_value_heads", self.linear_num_value_heads,
          "value heads of linear attention; a multiple of linear_num_key_heads", between(1, 1e5));
    visit("linear_key_head_dim", self.linear_key_head_dim, "width of a query or key head of linear attention",
          between(1, 1e4));
    visit("linear_value_head_dim", self.linear_value_head_dim, "width of a value head of linear attention",
          between(1, 1e4));
    visit("linear_conv_kernel_dim", self.linear_conv_kernel_dim,
          "width of the causal convolution of linear attention and Mamba-2, in positions", between(1, 8));
    visit(
        "linear_allow_neg_eigval", self.linear_allow_neg_eigval,
        "double the step sizes (beta) of linear attention, which allows negative eigenvalues of its state transitions");
    visit("linear_norm_epsilon", self.linear_norm_epsilon,
          "epsilon of the gated norm after the scan of linear attention; 0 = norm_epsilon", at_least(0));
    visit("mamba_state_dim", self.mamba_state_dim, "width of the state of a Mamba-2 head", between(1, 1e4));
    visit("mamba_head_dim", self.mamba_head_dim, "width of a Mamba-2 head", between(1, 1e4));
    visit("mamba_num_groups", self.mamba_num_groups, "groups of Mamba-2 heads that share B and C", between(1, 1e5));
    visit("mamba_num_heads", self.mamba_num_heads, "Mamba-2 heads; 0 = 2 x hidden_size / mamba_head_dim",
          between(0, 1e6));
  }

  i64 mamba_heads(i64 hidden_size) const {
    return mamba_num_heads > 0 ? mamba_num_heads : 2 * hidden_size / mamba_head_dim;
  }
  /// Returns the sizes of a layer's mixer with Gated DeltaNet or Kimi Delta Attention.
  ScanShape linear_attention_shape(LinearAttentionType type) const {
    return {.rule = type == LinearAttentionType::GatedDeltaNet ? ScanRule::DeltaRule : ScanRule::ChannelDeltaRule,
            .groups = linear_num_key_heads,
            .heads_per_group = linear_num_value_heads / linear_num_key_heads,
            .key_dim = linear_key_head_dim,
            .value_dim = linear_value_head_dim,
            .allows_neg_eigval = linear_allow_neg_eigval};
  }
  ScanShape mamba_shape(i64 hidden_size) const {
    return {.rule = ScanRule::StateSpace,
            .groups = mamba_num_groups,
            .heads_per_group = mamba_heads(hidden_size) / mamba_num_groups,
            .key_dim = mamba_state_dim,
            .value_dim = mamba_head_dim};
  }

  /// Appends a message to `errors` for every violated rule. `pattern` is model.hybrid_layer_pattern.
  void add_conflicts(i64 hidden_size, const std::string& pattern, std::vector<std::string>& errors) const;
};

}  // namespace mcpp
