#include "plan/step/weight_counts.h"

#include <algorithm>

#include "base/integer_math.h"
#include "model/config/moe.h"
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

}  // namespace

WeightCount& WeightCount::operator+=(const WeightCount& other) {
  all += other.all;
  summed += other.summed;
  factorized += other.factorized;
  return *this;
}

WeightCounts::WeightCounts(const ModelConfig& m, const Layout& layout) : model_(m) {
  const i64 h = m.hidden_size, tp = layout.tp, low_rank = layout.rounding.power_sgd_rank;
  const i64 queries = m.num_attention_heads * m.head_dim(), keys = m.query_groups() * m.head_dim();
  WeightCount attention = matrix((queries + 2 * keys) / tp, h, low_rank);
  attention += matrix(h, queries / tp, low_rank);
  dense_ = attention;
  dense_ += mlp(m, m.ffn(), tp, low_rank);
  vocabulary_ = uncompressed(m.padded_vocab_size() / tp, h);
  const bool has_biases = m.normalization == Normalization::LayerNorm;
  tensors_ =
      4 + (has_biases ? 4 : 2) + (m.qkv_bias() ? 1 : 0) + (m.attention_output_bias() ? 1 : 0) + (m.mlp_bias() ? 2 : 0);
  if (m.moe.num_experts == 0) return;
  sparse_ = attention;
  if (const i64 shared = m.moe.shared_expert_intermediate_size; shared > 0) sparse_ += mlp(m, shared, tp, low_rank);
  sparse_ += uncompressed(m.moe.num_experts, h);
  experts_ = mlp(m, m.moe_ffn(), layout.etp, low_rank) * real(m.moe.num_experts / layout.ep);
}

i64 WeightCounts::layers(LayerKind kind, i64 first, i64 end) const {
  const auto sparse = static_cast<i64>(layers_with_experts(model_.moe, first, end).size());
  return kind == LayerKind::Experts ? sparse : end - first - sparse;
}

WeightCount WeightCounts::stage_weights(const StageContents& stage) const {
  const int matrices = (stage.has_embedding ? 1 : 0) + (stage.has_output ? 1 : 0);
  const bool is_tied = !model_.untie_embeddings_and_output_weights;
  WeightCount sum = dense_ * real(layers(LayerKind::Dense, stage.first_layer, stage.end_layer));
  sum += sparse_ * real(layers(LayerKind::Experts, stage.first_layer, stage.end_layer));
  return sum += vocabulary_ * (is_tied ? std::min(matrices, 1) : matrices);
}

WeightCount WeightCounts::stage_experts(const StageContents& stage) const {
  return experts_ * real(layers(LayerKind::Experts, stage.first_layer, stage.end_layer));
}

}  // namespace mcpp
