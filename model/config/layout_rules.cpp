#include "model/config/layout_rules.h"

#include "model/config/block_spec.h"

namespace mcpp {

LayoutRules layout_rules(const ModelConfig& model) {
  LayoutRules rules;
  std::vector<i64> heads, groups, ffn;
  for (const BlockSpec& block : BlockKinds(model).kinds) {
    if (const AttentionSpec* attention = block.attention()) {
      heads.push_back(attention->num_heads);
      groups.push_back(attention->num_query_groups);
    }
    ffn.push_back(block.mlp() ? block.mlp()->ffn_hidden_size : 0);
  }
  if (!heads.empty()) rules.num_attention_heads = PerLayer(heads), rules.num_query_groups = PerLayer(groups);
  rules.ffn_hidden_size = PerLayer(ffn);
  rules.padded_vocab_size = model.padded_vocab_size();
  rules.seq_length = model.seq_length;
  rules.num_experts = model.moe.num_experts;
  rules.moe_ffn_hidden_size = model.moe_ffn();
  return rules;
}

}  // namespace mcpp
