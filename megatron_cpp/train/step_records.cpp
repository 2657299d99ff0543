#include "megatron_cpp/train/step_records.h"

#include <chrono>
#include <utility>

namespace mcpp {

StepRecords::StepRecords(const SampleWork& work, KeptRef<LoggingConfig> config, Session& session, KeptRef<Log> log,
                         const std::optional<PredictedStep>& predicted)
    : config_(config), session_(session), log_(log), window_(work), ranks_(config, session, log, predicted) {}

void StepRecords::add(const RecordedStep& step, MetricsWriter& metrics, TensorboardMetrics& tensorboard) {
  for (const auto& [name, seconds] : step.timers) timers_[name] += seconds;
  window_.add(step.stats, step.end);
  for (const std::string& warning : idle_experts_.add(step.experts)) log_.warn(warning);
  if (config_.show_progress) log_.progress(progress_line(window_.means()));
  tensorboard.write(window_.last(), session_.device->memory().total);
  if (config_.metrics_every_iteration) metrics.write(window_.last());
  tensorboard.write(step.statistics, step.stats.iteration);
  if (step.statistics.layers.empty()) return;
  log_.info(layer_table(step.statistics));
  metrics.write_layers(step.stats.iteration, step.statistics);
}

void StepRecords::write_line(i64 iteration, const BytesAwayByClass& away, MetricsWriter& metrics,
                             TensorboardMetrics& tensorboard) {
  IterationStats stats = window_.means();
  stats.lm_loss = window_.mean_loss();
  stats.ranks = ranks_.tell(iteration, window_, away, metrics);
  if (config_.timing_log_level > 0)
    stats.timers =
        gather_timers(std::exchange(timers_, {}), static_cast<double>(window_.iterations()), session_.parallel.world);
  log_.info(iteration_line(stats, std::chrono::system_clock::now()));
  if (!stats.timers.empty()) log_.info(timer_lines(stats.timers, config_.timing_log_option));
  tensorboard.write_line(stats);
  if (!config_.metrics_every_iteration) metrics.write(stats);
  window_.restart();
}

}  // namespace mcpp
