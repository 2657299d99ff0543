#include "megatron_cpp/monitor/statistics.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>

#include "base/json.h"
#include "base/number_format.h"
#include "base/strings.h"
#include "megatron_cpp/monitor/rank_report.h"
#include "megatron_cpp/step/training_shards.h"
#include "nn/layer_name.h"
#include "tensor/ops/ops.h"
#include "tensor/transfer.h"

namespace mcpp {
namespace {

/// Returns the upper limit of the quarter octave that contains x.
float bucket_of(float x) {
  constexpr int kShift = 21;  // keeps two bits of the fraction
  const u32 bits = std::bit_cast<u32>(x);
  const u32 sign = bits & 0x8000'0000, size = bits & 0x7FFF'FFFF;
  if (size == 0 || !std::isfinite(x)) return std::isfinite(x) ? 0.0F : x;
  return std::bit_cast<float>(sign | (((size >> kShift) + (sign == 0 ? 1 : 0)) << kShift));
}

template <class T>
void add_values(const Tensor& values, bool has_buckets, ValueStats& stats) {
  for (const T value : HostValues<T>(values)) {
    const double x = static_cast<double>(static_cast<float>(value));
    stats.zeros += x == 0 ? 1 : 0;
    stats.sum += x;
    stats.sum_of_squares += x * x;
    stats.max_abs = std::max(stats.max_abs, std::abs(x));
    if (has_buckets && !std::isnan(x)) stats.buckets[bucket_of(static_cast<float>(x))] += 1;
  }
  stats.count += static_cast<double>(values.numel());
}

Json encoded(const ValueStats& stats) {
  std::vector<double> limits, counts;
  for (const auto& [limit, count] : stats.buckets) {
    limits.push_back(limit);
    counts.push_back(count);
  }
  return {stats.count, stats.zeros, stats.sum, stats.sum_of_squares, stats.max_abs, limits, counts};
}

ValueStats decoded(const Json& list) {
  ValueStats stats{.count = list[0], .zeros = list[1], .sum = list[2], .sum_of_squares = list[3], .max_abs = list[4]};
  for (std::size_t i = 0; i < list[5].size(); ++i) stats.buckets[list[5][i].get<float>()] = list[6][i];
  return stats;
}

}  // namespace

void ValueStats::add(const Tensor& values, bool has_buckets) {
  on_float(values.dtype(), [&]<class T>() { add_values<T>(values, has_buckets, *this); });
}

ValueStats& ValueStats::operator+=(const ValueStats& other) {
  count += other.count;
  zeros += other.zeros;
  sum += other.sum;
  sum_of_squares += other.sum_of_squares;
  max_abs = std::max(max_abs, other.max_abs);
  for (const auto& [limit, values] : other.buckets) buckets[limit] += values;
  return *this;
}

double ValueStats::norm() const {
  return std::sqrt(sum_of_squares);
}

StatsByName sum_over_ranks(const StatsByName& local, Communicator& world) {
  Json object = Json::object();
  for (const auto& [name, stats] : local) object[name] = encoded(stats);
  StatsByName all;
  for (const Json& of_rank : gather_values(object, world))
    for (const auto& [name, stats] : of_rank.items()) all[name] += decoded(stats);
  return all;
}

ValueStats total_stats(const StatsByName& stats) {
  ValueStats total;
  for (const auto& [name, one] : stats) total += one;
  return total;
}

StatsByName group_by_layer(const StatsByName& by_parameter) {
  StatsByName layers;
  for (const auto& [name, stats] : by_parameter) layers[layer_of(name)] += stats;
  return layers;
}

namespace {

StatsByName stats_of(const TrainingState& state,
                     void (ChunkParamBuffers::*visit)(const ParamAndGradBuffer::PartVisitor&) const, bool has_buckets) {
  const PrimaryShard share(state);
  StatsByName stats;
  for (const TrainingState::Chunk& chunk : state.chunks()) {
    ((*chunk.memory).*visit)([&](const Param& param, i64, const Tensor& values) {
      const Part owned = share.of(param, values.numel());
      if (owned.count > 0) stats[param.name].add(values.flat(owned.first, owned.count), has_buckets);
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

}  // namespace

void StatisticsCollector::before_backward(i64 iteration) {
  activations_.clear();
  if (!needs_layer_statistics(iteration)) return;
  for (const TrainingState::Chunk& chunk : state_.chunks()) {
    const ModelContext& context = chunk.model->context();
    // Tensor-parallel ranks without sequence parallelism have identical activations, so only rank 0 counts them.
    if (!context.splits_sequence() && context.tp.rank() != 0) continue;
    chunk.model->observe_layers([this](i64 layer, const Tensor& y) {
      activations_[str("decoder.layers.", layer)].add(y, /*has_buckets=*/false);
    });
  }
}

void StatisticsCollector::after_backward() {
  for (const TrainingState::Chunk& chunk : state_.chunks()) chunk.model->observe_layers(nullptr);
}

StepStatistics StatisticsCollector::gradient_statistics(i64 iteration) {
  StepStatistics step;
  const bool needs_zeros = config_.log_num_zeros_in_grad && should_log_(iteration);
  if (!needs_zeros && !needs_layer_statistics(iteration) && !needs_histograms(iteration)) return step;
  step.gradients =
      sum_over_ranks(stats_of(state_, &ChunkParamBuffers::visit_grads, needs_histograms(iteration)), world_);
  if (needs_zeros) step.num_zeros = total_stats(step.gradients).zeros;
  if (!needs_layer_statistics(iteration)) return step;
  copy_weights();
  for (const auto& [name, stats] : group_by_layer(step.gradients))
    step.layers.push_back({.name = name, .grad_norm = stats.norm(), .activation_rms = {}, .activation_max = {}});
  std::ranges::sort(step.layers, {}, [](const auto& layer) { return layer_order(layer.name); });
  const StatsByName activations = sum_over_ranks(activations_, world_);
  for (StepStatistics::Layer& layer : step.layers) {
    const auto it = activations.find(layer.name);
    if (it == activations.end()) continue;
    layer.activation_rms = std::sqrt(it->second.sum_of_squares / it->second.count);
    layer.activation_max = it->second.max_abs;
  }
  return step;
}

void StatisticsCollector::add_weights(i64 iteration, double grad_norm, StepStatistics& step) {
  // The gradients are unnormalized and scaled; the true global norm is known, which determines the factor.
  const double raw = total_stats(step.gradients).norm(), factor = raw > 0 ? grad_norm / raw : 0;
  for (StepStatistics::Layer& layer : step.layers) layer.grad_norm *= factor;
  for (auto& [name, stats] : step.gradients) scale(stats, factor);
  const bool needs_norm = config_.log_params_norm && should_log_(iteration);
  if (!needs_norm && !needs_layer_statistics(iteration) && !needs_histograms(iteration)) return;
  step.weights =
      sum_over_ranks(stats_of(state_, &ChunkParamBuffers::visit_weights, needs_histograms(iteration)), world_);
  if (needs_norm) step.params_norm = total_stats(step.weights).norm();
  const StatsByName layers = group_by_layer(step.weights);
  for (StepStatistics::Layer& layer : step.layers) layer.params_norm = layers.at(layer.name).norm();
  if (needs_layer_statistics(iteration)) add_update_norms(step);
}

std::vector<NamedShard> StatisticsCollector::owned_weights() const {
  const bool has_master = state_.optimizer().stores_master();
  const std::string prefix = has_master ? optimizer_tensor(kMasterState, "") : model_tensor("");
  std::vector<NamedShard> shards = shards_to_save(state_);
  std::erase_if(shards, [&](const NamedShard& shard) { return !shard.name.starts_with(prefix); });
  for (NamedShard& shard : shards) shard.name = shard.name.substr(prefix.size());
  return shards;
}

void StatisticsCollector::copy_weights() {
  weights_before_.clear();
  for (const NamedShard& shard : owned_weights())
    shard.read(weights_before_.emplace_back(Tensor::empty({shard.numel()}, shard.dtype(), host_, MemoryClass::Other)));
}

void StatisticsCollector::add_update_norms(StepStatistics& step) {
  StatsByName updates;
  std::size_t i = 0;
  for (const NamedShard& shard : owned_weights()) {
    Tensor& before = weights_before_.at(i++);
    if (!step.gradients.contains(shard.name)) continue;  // state of a router that has no gradient
    Tensor after = Tensor::like(before);
    shard.read(after);
    ops::scale(before, -1);
    ops::add_to(before, after);
    updates[shard.name].add(after, /*has_buckets=*/false);
  }
  weights_before_.clear();
  const StatsByName layers = group_by_layer(sum_over_ranks(updates, world_));
  for (StepStatistics::Layer& layer : step.layers) layer.update_norm = layers.at(layer.name).norm();
}

std::vector<ExpertLayerStats> expert_stats(const std::vector<LayerRoutingStats>& stats, double tokens) {
  std::vector<ExpertLayerStats> layers;
  for (const LayerRoutingStats& of_layer : stats) {
    const RoutingCounts& tally = of_layer.tally;
    const double choices = std::accumulate(tally.tokens.begin(), tally.tokens.end(), 0.0);
    if (choices == 0) continue;  // the step was aborted
    const double mean = choices / static_cast<double>(tally.tokens.size());
    layers.push_back({.layer = of_layer.layer,
                      .tokens = tally.tokens,
                      .max_load = std::ranges::max(tally.tokens) / mean,
                      .dropped = tally.dropped / choices,
                      .balance_loss = tally.balance_loss / tokens,
                      .z_loss = tally.z_loss / tokens});
  }
  return layers;
}

ExpertLayerStats summarize(const std::vector<ExpertLayerStats>& layers) {
  ExpertLayerStats sum;
  const auto count = static_cast<double>(layers.size());
  for (const ExpertLayerStats& layer : layers) {
    sum.max_load = std::max(sum.max_load, layer.max_load);
    sum.dropped += layer.dropped / count;
    sum.balance_loss += layer.balance_loss / count;
    sum.z_loss += layer.z_loss / count;
  }
  return sum;
}

std::vector<std::string> IdleExpertDetector::add(const std::vector<LayerRoutingStats>& stats) {
  std::vector<std::string> warnings;
  for (const LayerRoutingStats& of_layer : stats) {
    for (std::size_t expert = 0; expert < of_layer.tally.tokens.size(); ++expert) {
      i64& steps = idle_[{of_layer.layer, expert}];
      steps = of_layer.tally.tokens[expert] > 0 ? 0 : steps + 1;
      if (steps == steps_)
        warnings.push_back(str("expert ", expert, " of layer ", of_layer.layer, " has received no tokens for ", steps_,
                               " iterations; a larger model.moe_aux_loss_coeff, or moe_router_enable_expert_bias, "
                               "would activate it again"));
    }
  }
  return warnings;
}

}  // namespace mcpp
