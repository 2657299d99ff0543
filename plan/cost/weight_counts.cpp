#include "plan/cost/weight_counts.h"

#include <algorithm>

#include "model/config/expert_layers.h"
#include "plan/cost/real.h"

namespace mcpp {
WeightCounts::WeightCounts(const ModelConfig& m, const Layout& layout) : model_(m) {
  const double h = real(m.hidden_size), d = real(m.head_dim()), tp = real(layout.tp);
  const double heads = real(m.num_attention_heads) + 2 * real(m.query_groups());
  const double attention = h * d * (heads + real(m.num_attention_heads)), matrices = m.gated() ? 3 : 2;
  dense_ = (attention + matrices * h * real(m.ffn())) / tp;
  vocabulary_ = h * real(m.padded_vocab_size()) / tp;
  const bool has_biases = m.normalization == Normalization::LayerNorm;
  tensors_ =
      4 + (has_biases ? 4 : 2) + (m.qkv_bias() ? 1 : 0) + (m.attention_output_bias() ? 1 : 0) + (m.mlp_bias() ? 2 : 0);
  if (m.moe.num_experts == 0) return;
  const double experts = real(m.moe.num_experts);
  sparse_ = (attention + matrices * h * real(m.moe.shared_expert_intermediate_size)) / tp + h * experts;
  experts_ = matrices * h * real(m.moe_ffn()) / real(layout.etp) * experts / real(layout.ep);
}

i64 WeightCounts::layers(LayerKind kind, i64 first, i64 end) const {
  const auto sparse = static_cast<i64>(layers_with_experts(model_.moe, first, end).size());
  return kind == LayerKind::Experts ? sparse : end - first - sparse;
}

double WeightCounts::of(const StageContents& stage) const {
  const int matrices = (stage.has_embedding ? 1 : 0) + (stage.has_output ? 1 : 0);
  const bool is_tied = !model_.untie_embeddings_and_output_weights;
  return dense_ * real(layers(LayerKind::Dense, stage.first_layer, stage.end_layer)) +
         sparse_ * real(layers(LayerKind::Experts, stage.first_layer, stage.end_layer)) +
         vocabulary_ * (is_tied ? std::min(matrices, 1) : matrices);
}

double WeightCounts::experts_of(const StageContents& stage) const {
  return experts_ * real(layers(LayerKind::Experts, stage.first_layer, stage.end_layer));
}

}  // namespace mcpp
