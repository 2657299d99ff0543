#include "plan/step/weight_counts.h"

#include <algorithm>

#include "base/integer_math.h"
#include "parallel/dp/power_sgd.h"

namespace mcpp {
namespace {

WeightCount count_param(const ParamTrace& param, i64 low_rank) {
  const double all = real(numel(param.shape));
  if (!param.is_matrix || param.has_partial_slices || !is_low_rank(param.shape, low_rank))
    return {.all = all, .summed = all};
  const i64 columns = param.shape.back();
  return {.all = all, .summed = real(low_rank * (numel(param.shape) / columns + columns)), .factorized = all};
}

void add_param(const PredictionInput& input, const ParamTrace& param, WeightCounts::BlockCounts& counts) {
  const bool is_dense = param.grid == GridKind::Dense;
  (is_dense ? counts.dense : counts.experts) += count_param(param, input.layout.formats.power_sgd_rank);
  counts.tensors += is_dense ? 1 : 0;
}

WeightCounts::BlockCounts count_block(const PredictionInput& input, const BlockSpec& block, i64 layer) {
  WeightCounts::BlockCounts counts;
  for (const BlockSpec& part : {mixer_of(block), feed_forward_of(block)})
    for (const ParamTrace& param : input.trace(part, layer).params) add_param(input, param, counts);
  return counts;
}

}  // namespace

WeightCount& WeightCount::operator+=(const WeightCount& other) {
  all += other.all;
  summed += other.summed;
  factorized += other.factorized;
  return *this;
}

WeightCounts::WeightCounts(const PredictionInput& input)
    : model_(input.work.model),
      measurements_(input.measurements),
      vocabulary_(real(model_.padded_vocab_size() / input.layout.tp) * real(model_.hidden_size)) {
  for (std::size_t kind = 0; kind < blocks().kinds.size(); ++kind)
    counts_.push_back(count_block(input, blocks().kinds[kind], blocks().first_layers[kind]));
  for (const ParamTrace& param : input.output_trace().params)
    if (param.name.starts_with("mtp.")) add_param(input, param, mtp_);
}

WeightCount WeightCounts::stage_weights(const StageContents& stage) const {
  const int matrices = (stage.has_embedding ? 1 : 0) + (stage.has_output ? 1 : 0);
  const bool is_tied = !model_.untie_embeddings_and_output_weights;
  WeightCount sum;
  const std::vector<i64> layers = blocks().count(stage.first_layer, stage.end_layer);
  for (std::size_t kind = 0; kind < layers.size(); ++kind) sum += counts_[kind].dense * real(layers[kind]);
  const double vocabulary = vocabulary_ * (is_tied ? std::min(matrices, 1) : matrices);
  if (stage.has_final_norm) sum += mtp_.dense;
  if (stage.has_final_norm && !stage.has_embedding && !is_tied && model_.mtp_num_layers > 0)
    sum += {.all = vocabulary_, .summed = vocabulary_};  // its copy of the word embeddings
  return sum += {.all = vocabulary, .summed = vocabulary};
}

WeightCount WeightCounts::stage_experts(const StageContents& stage) const {
  WeightCount sum;
  const std::vector<i64> layers = blocks().count(stage.first_layer, stage.end_layer);
  for (std::size_t kind = 0; kind < layers.size(); ++kind) sum += counts_[kind].experts * real(layers[kind]);
  if (stage.has_final_norm) sum += mtp_.experts;
  return sum;
}

}  // namespace mcpp
