#include "megatron_cpp/monitor/metrics/tensorboard_metrics.h"

#include <algorithm>
#include <limits>

#include "base/strings.h"

namespace mcpp {
namespace {

constexpr std::string_view kVsSamples = " vs samples", kPerplexity = " ppl", kLoss = "lm loss",
                           kConfiguration = "configuration";

std::string evaluation_tag(std::string_view split) {
  return str(kLoss, " ", split);
}

/// Adds a histogram, if the values were sorted into buckets.
void add_histogram(const std::string& tag, const ValueStats& stats, EventRecord& event) {
  if (stats.buckets.empty()) return;
  std::vector<double> limits, counts;
  for (const auto& [limit, count] : stats.buckets) {
    limits.push_back(std::min<double>(limit, std::numeric_limits<double>::max()));
    counts.push_back(count);
  }
  event.add_histogram(tag, {.min = limits.front(),
                            .max = limits.back(),
                            .count = stats.count,
                            .sum = stats.sum,
                            .sum_of_squares = stats.sum_of_squares,
                            .limits = limits,
                            .counts = counts});
}

}  // namespace

/// Values of one step on the axis of iterations; some of them also on the axis of samples.
class TensorboardMetrics::Record {
 public:
  Record(i64 iteration, i64 consumed_samples)
      : by_iteration_(wall_seconds(), iteration), by_samples_(wall_seconds(), consumed_samples) {}

  void add(std::string_view tag, double value) { by_iteration_.add_scalar(tag, value); }
  void add_on_both_axes(std::string_view tag, double value) {
    add(tag, value);
    by_samples_.add_scalar(str(tag, kVsSamples), value);
  }
  void write_to(TensorboardWriter& writer) const {
    for (const EventRecord* event : {&by_iteration_, &by_samples_})
      if (!event->is_empty()) writer.write(*event);
  }

 private:
  EventRecord by_iteration_, by_samples_;
};

bool is_valid_after_resume(i64 step, std::string_view tag, const ResumePoint& at,
                           const std::function<bool(const std::string& split)>& has_evaluation) {
  const bool is_by_samples = tag.ends_with(kVsSamples);
  if (is_by_samples) tag.remove_suffix(kVsSamples.size());
  const i64 last = is_by_samples ? at.consumed_samples : at.iteration;
  if (step != last) return step < last;
  if (tag == kConfiguration) return false;
  if (tag.ends_with(kPerplexity)) tag.remove_suffix(kPerplexity.size());
  const std::string prefix = evaluation_tag("");
  return !tag.starts_with(prefix) || has_evaluation(std::string(tag.substr(prefix.size())));
}

TensorboardMetrics::TensorboardMetrics(StoredRef<Config> config, bool writes, StoredRef<Log> log)
    : config_(config), writer_(writes ? Path(config_.logging.tensorboard_dir) : Path(), log) {}

void TensorboardMetrics::begin(const ResumePoint& at, const MetricsWriter& metrics) {
  const auto has_evaluation = [&](const std::string& split) { return metrics.has_evaluation(split, at.iteration); };
  const auto is_still_valid = [&](i64 step, std::string_view tag) {
    return is_valid_after_resume(step, tag, at, has_evaluation);
  };
  writer_.begin(at.iteration > 0 ? TensorboardWriter::KeepEventFn(is_still_valid) : nullptr);
  if (!writer_.is_enabled()) return;
  EventRecord text(wall_seconds(), at.iteration);
  text.add_text(kConfiguration, str("```toml\n", print_config(config_), "```\n"));
  writer_.write(text);
}

void TensorboardMetrics::write(const IterationStats& step, const MemoryUse& memory) {
  if (!writer_.is_enabled() || step.iteration % config_.logging.tensorboard_log_interval != 0) return;
  Record record(step.iteration, step.consumed_samples);
  record.add_on_both_axes(kLoss, step.lm_loss);
  record.add_on_both_axes("learning-rate", step.learning_rate);
  record.add_on_both_axes("batch-size", static_cast<double>(step.global_batch_size));
  record.add_on_both_axes("loss-scale", step.loss_scale);
  record.add_on_both_axes("grad-norm", step.grad_norm);
  if (step.num_zeros) record.add_on_both_axes("num-zeros", *step.num_zeros);
  if (step.params_norm) record.add_on_both_axes("params-norm", *step.params_norm);
  record.add("iteration-time", step.elapsed_ms / 1000);
  record.add("throughput", step.tflops);
  record.add("tokens-per-second", step.tokens_per_second);
  if (step.mfu) record.add("mfu", *step.mfu);
  record.add("mem-allocated-bytes", static_cast<double>(memory.bytes));
  record.add("mem-max-allocated-bytes", static_cast<double>(memory.peak));
  record.add("skipped-iterations", static_cast<double>(step.skipped_iterations));
  if (!step.experts.empty()) {
    const ExpertLayerStats experts = summarize(step.experts);
    record.add("load_balancing_loss", experts.balance_loss);
    record.add("z_loss", experts.z_loss);
    for (const ExpertLayerStats& layer : step.experts) {
      record.add(str("moe/load_balancing_loss_layer_", layer.layer), layer.balance_loss);
      record.add(str("moe/largest_load_layer_", layer.layer), layer.max_load);
      record.add(str("moe/dropped_layer_", layer.layer), layer.dropped);
    }
  }
  record.write_to(writer_);
}

void TensorboardMetrics::write_line(const IterationStats& line) {
  if (!writer_.is_enabled()) return;
  Record record(line.iteration, line.consumed_samples);
  if (!line.ranks.empty()) {
    const RankStats mean = mean_of(line.ranks);
    record.add("bubble", mean.bubble);
    record.add("exposed-communication", mean.exposed_communication);
    record.add("compute-time", mean.compute_ms / 1000);
    record.add("mem-max-allocated-bytes-of-ranks", mean.peak_memory_bytes);
  }
  for (const TimerStats& timer : line.timers) record.add(timer.name + "-time", timer.max() / 1000);
  record.write_to(writer_);
}

void TensorboardMetrics::write(const StepStatistics& statistics, i64 iteration) {
  if (!writer_.is_enabled()) return;
  EventRecord event(wall_seconds(), iteration);
  for (const StepStatistics::Layer& layer : statistics.layers) {
    event.add_scalar(str("grad-norm/", layer.name), layer.grad_norm);
    event.add_scalar(str("params-norm/", layer.name), layer.params_norm);
    if (layer.activation_rms) event.add_scalar(str("activation-rms/", layer.name), *layer.activation_rms);
    if (layer.activation_max) event.add_scalar(str("activation-max/", layer.name), *layer.activation_max);
  }
  for (const auto& [name, stats] : statistics.weights) add_histogram("weights/" + name, stats, event);
  for (const auto& [name, stats] : statistics.gradients) add_histogram("gradients/" + name, stats, event);
  if (!event.is_empty()) writer_.write(event);
}

void TensorboardMetrics::write(const ValidationStats& stats, i64 consumed_samples) {
  if (!writer_.is_enabled()) return;
  Record record(stats.iteration, consumed_samples);
  record.add_on_both_axes(evaluation_tag(stats.split), stats.lm_loss);
  record.add_on_both_axes(str(evaluation_tag(stats.split), kPerplexity), stats.perplexity());
  record.write_to(writer_);
}

}  // namespace mcpp
