#include "model/config/layout_rules.h"

namespace mcpp {

LayoutRules layout_rules(const ModelConfig& model) {
  LayoutRules rules;
  rules.num_attention_heads = model.num_attention_heads;
  rules.num_query_groups = model.query_groups();
  rules.ffn_hidden_size = model.ffn();
  rules.padded_vocab_size = model.padded_vocab_size();
  rules.seq_length = model.seq_length;
  rules.num_experts = model.moe.num_experts;
  rules.moe_ffn_hidden_size = model.moe_ffn();
  return rules;
}

}  // namespace mcpp
