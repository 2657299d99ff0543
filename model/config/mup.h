// Maximal update parametrization (Yang et al., "Tensor Programs V", 2022): initial values, learning rates and factors
// of a model as functions of its width, with which the best hyperparameters do not depend on the width. The keys have
// the names of Megatron-LM.
#pragma once
#include <string>
#include <vector>

#include "base/fields.h"

namespace mcpp {

struct ModelConfig;

struct MupConfig {
  bool is_used = false;
  i64 base_hidden_size = 0;
  double output_mult = 0;
  i64 base_head_dim = 0;
  double attn_scale_power = 1;

  template <class Self, class Visitor>
  static void fields(Self& self, Visitor& visit) {
    visit("use_mup", self.is_used,
          "scale initial values, learning rates, attention scores and logits with the width (maximal update "
          "parametrization), so that models of all widths share their hyperparameters");
    visit("mup_base_hidden_size", self.base_hidden_size,
          "muP: hidden_size of the model whose hyperparameters are used; 0 = hidden_size", between(0, 1e6));
    visit("mup_output_mult", self.output_mult, "muP: factor of the logits; 0 = mup_base_hidden_size / hidden_size",
          at_least(0));
    visit("mup_base_head_dim", self.base_head_dim,
          "muP: width of a head of the base model, whose square root multiplies the attention scores; 0 = 1",
          between(0, 1e5));
    visit("mup_attn_scale_power", self.attn_scale_power,
          "muP: attention scores are divided by the width of a head to this power", between(0, 2));
  }

  bool operator==(const MupConfig&) const = default;

  /// Appends the conflicts of these keys with the others of the model.
  void add_conflicts(const ModelConfig& model, std::vector<std::string>& errors) const;
};

}  // namespace mcpp
