#include "plan/step/weight_counts.h"

#include <algorithm>

#include "base/integer_math.h"
#include "parallel/dp/power_sgd.h"

namespace mcpp {
namespace {

WeightCount uncompressed(i64 rows, i64 columns) {
  const double all = real(rows) * real(columns);
  return {.all = all, .summed = all};
}

WeightCount matrix(i64 rows, i64 columns, i64 low_rank) {
  WeightCount count = uncompressed(rows, columns);
  if (!is_low_rank({rows, columns}, low_rank)) return count;
  count.summed = real(low_rank * (rows + columns)), count.factorized = count.all;
  return count;
}

/// Weights of an MLP's two products of this width, sharded over `parts` ranks.
WeightCount mlp(const ModelConfig& m, i64 width, i64 parts, i64 low_rank) {
  WeightCount sum = matrix((m.is_gated() ? 2 : 1) * width / parts, m.hidden_size, low_rank);
  return sum += matrix(m.hidden_size, width / parts, low_rank);
}

WeightCounts::BlockCounts count_block(const ModelConfig& m, const BlockSpec& block, const Layout& layout) {
  const i64 h = m.hidden_size, tp = layout.tp, low_rank = layout.formats.power_sgd_rank;
  const double norm_tensors = m.normalization == Normalization::LayerNorm ? 2 : 1;
  WeightCounts::BlockCounts counts;
  if (const AttentionSpec* attention = block.attention()) {
    counts.dense += matrix((attention->query_width() + 2 * attention->key_width()) / tp, h, low_rank);
    counts.dense += matrix(h, attention->query_width() / tp, low_rank);
    if (attention->has_output_gate) counts.dense += matrix(attention->query_width() / tp, h, low_rank);
    counts.tensors += 2 + (attention->has_output_gate ? 1 : 0) + norm_tensors + (m.qkv_bias() ? 1 : 0) +
                      (m.attention_output_bias() ? 1 : 0);
  }
  if (block.mlp()) counts.dense += mlp(m, block.mlp()->ffn_hidden_size, tp, low_rank);
  if (block.has_feed_forward()) counts.tensors += 2 + norm_tensors + (m.mlp_bias() ? 2 : 0);
  if (const MoeSpec* moe = block.moe()) {
    if (const i64 shared = moe->shared_expert_intermediate_size; shared > 0)
      counts.dense += mlp(m, shared, tp, low_rank);
    counts.dense += uncompressed(moe->num_experts, h);
    counts.experts = mlp(m, moe->ffn_hidden_size, layout.expert_tp(), low_rank) * real(moe->num_experts / layout.ep);
  }
  return counts;
}

}  // namespace

WeightCount& WeightCount::operator+=(const WeightCount& other) {
  all += other.all;
  summed += other.summed;
  factorized += other.factorized;
  return *this;
}

WeightCounts::WeightCounts(const ModelConfig& m, const Layout& layout)
    : model_(m), blocks_(m), vocabulary_(uncompressed(m.padded_vocab_size() / layout.tp, m.hidden_size)) {
  for (const BlockSpec& block : blocks_.kinds) counts_.push_back(count_block(m, block, layout));
}

WeightCount WeightCounts::stage_weights(const StageContents& stage) const {
  const int matrices = (stage.has_embedding ? 1 : 0) + (stage.has_output ? 1 : 0);
  const bool is_tied = !model_.untie_embeddings_and_output_weights;
  WeightCount sum;
  const std::vector<i64> layers = blocks_.count(stage.first_layer, stage.end_layer);
  for (std::size_t kind = 0; kind < layers.size(); ++kind) sum += counts_[kind].dense * real(layers[kind]);
  return sum += vocabulary_ * (is_tied ? std::min(matrices, 1) : matrices);
}

WeightCount WeightCounts::stage_experts(const StageContents& stage) const {
  WeightCount sum;
  const std::vector<i64> layers = blocks_.count(stage.first_layer, stage.end_layer);
  for (std::size_t kind = 0; kind < layers.size(); ++kind) sum += counts_[kind].experts * real(layers[kind]);
  return sum;
}

}  // namespace mcpp
