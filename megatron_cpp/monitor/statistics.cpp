#include "megatron_cpp/monitor/statistics.h"

#include <algorithm>
#include <cmath>

#include "base/number_format.h"
#include "base/strings.h"
#include "megatron_cpp/step/training_shards.h"

namespace mcpp {
namespace {

StatsByName stats_of(const TrainingState& state,
                     void (ChunkParamBuffers::*visit)(const ParamAndGradBuffer::PartVisitor&) const,
                     bool with_buckets) {
  const PrimaryShard share(state);
  StatsByName stats;
  for (const TrainingState::Chunk& chunk : state.chunks()) {
    ((*chunk.memory).*visit)([&](const Param& param, i64, const Tensor& values) {
      const Part owned = share.of(param, values.numel());
      if (owned.count > 0) stats[param.name].add(values.flat(owned.first, owned.count), with_buckets);
    });
  }
  return stats;
}

/// Adjusts statistics as if every value were multiplied by `factor`.
void scale(ValueStats& stats, double factor) {
  stats.sum *= factor;
  stats.sum_of_squares *= factor * factor;
  stats.max_abs *= std::abs(factor);
  std::map<float, double> buckets;
  for (const auto& [limit, count] : stats.buckets) buckets[static_cast<float>(limit * factor)] += count;
  stats.buckets = std::move(buckets);
}

/// Sort key: the embedding, the layers in order, then what follows them.
int layer_order(const std::string& layer) {
  constexpr std::string_view kLayers = "decoder.layers.";
  if (layer.starts_with(kLayers)) return std::stoi(layer.substr(kLayers.size()));
  constexpr int kEnd = 1 << 30;
  return layer == "embedding" ? -1 : layer == "output_layer" ? kEnd + 1 : kEnd;
}

}  // namespace

void StatisticsCollector::before_backward(i64 iteration) {
  activations_.clear();
  if (!needs_layers(iteration)) return;
  for (const TrainingState::Chunk& chunk : state_.chunks()) {
    const ModelContext& context = chunk.model->context();
    // Tensor-parallel ranks without sequence parallelism have identical activations, so only rank 0 counts them.
    if (!context.splits_sequence() && context.tp.rank() != 0) continue;
    chunk.model->observe_layers([this](i64 layer, const Tensor& y) {
      activations_[str("decoder.layers.", layer)].add(y, /*with_buckets=*/false);
    });
  }
}

void StatisticsCollector::after_backward() {
  for (const TrainingState::Chunk& chunk : state_.chunks()) chunk.model->observe_layers(nullptr);
}

StepStatistics StatisticsCollector::gradient_statistics(i64 iteration) const {
  StepStatistics step;
  const bool needs_zeros = config_.log_num_zeros_in_grad && should_log_(iteration);
  if (!needs_zeros && !needs_layers(iteration) && !needs_histograms(iteration)) return step;
  step.gradients =
      sum_over_ranks(stats_of(state_, &ChunkParamBuffers::visit_grads, needs_histograms(iteration)), world_);
  if (needs_zeros) step.num_zeros = total_stats(step.gradients).zeros;
  if (!needs_layers(iteration)) return step;
  for (const auto& [name, stats] : group_by_layer(step.gradients))
    step.layers.push_back({.name = name, .grad_norm = stats.norm(), .activation_rms = {}, .activation_max = {}});
  std::ranges::sort(step.layers, {}, [](const auto& layer) { return layer_order(layer.name); });
  const StatsByName activations = sum_over_ranks(activations_, world_);
  for (StepStatistics::Layer& layer : step.layers) {
    const auto found = activations.find(layer.name);
    if (found == activations.end()) continue;
    layer.activation_rms = std::sqrt(found->second.sum_of_squares / found->second.count);
    layer.activation_max = found->second.max_abs;
  }
  return step;
}

void StatisticsCollector::add_weights(i64 iteration, double grad_norm, StepStatistics& step) const {
  // The gradients are unnormalized and scaled; the true global norm is known, which determines the factor.
  const double raw = total_stats(step.gradients).norm(), factor = raw > 0 ? grad_norm / raw : 0;
  for (StepStatistics::Layer& layer : step.layers) layer.grad_norm *= factor;
  for (auto& [name, stats] : step.gradients) scale(stats, factor);
  const bool needs_norm = config_.log_params_norm && should_log_(iteration);
  if (!needs_norm && !needs_layers(iteration) && !needs_histograms(iteration)) return;
  step.weights =
      sum_over_ranks(stats_of(state_, &ChunkParamBuffers::visit_weights, needs_histograms(iteration)), world_);
  if (needs_norm) step.params_norm = total_stats(step.weights).norm();
  const StatsByName layers = group_by_layer(step.weights);
  for (StepStatistics::Layer& layer : step.layers) layer.params_norm = layers.at(layer.name).norm();
}

std::string layer_table(const StepStatistics& step) {
  const auto column = [](const std::string& text) { return pad_left(text, 16); };
  const auto number = [&](const std::optional<double>& x) { return column(x ? scientific(*x, 4) : ""); };
  std::string text = str(pad_right("  layer", 28), column("grad norm"), column("params norm"), column("activation rms"),
                         column("activation max"));
  for (const StepStatistics::Layer& layer : step.layers)
    text += str("\n", pad_right("  " + layer.name, 28), number(layer.grad_norm), number(layer.params_norm),
                number(layer.activation_rms), number(layer.activation_max));
  return text;
}

}  // namespace mcpp
