#include "model/config/layout_rules.h"

#include <algorithm>

#include "model/config/block_spec.h"
#include "parallel/cp/head_exchange.h"

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

bool can_exchange_heads(const ModelConfig& model, i64 ranks, i64 tensor_parallel) {
  return std::ranges::all_of(BlockKinds(model).kinds, [&](const BlockSpec& block) {
    const AttentionSpec* attention = block.attention();
    return !attention || HeadExchange::is_possible(ranks, attention->num_heads / tensor_parallel,
                                                   std::max<i64>(attention->num_query_groups / tensor_parallel, 1));
  });
}

}  // namespace mcpp
