#include "megatron_cpp/train/step_logger.h"

#include <chrono>
#include <utility>

namespace mcpp {

StepLogger::StepLogger(const SampleWork& work, const DevicePeak& peak, StoredRef<Config> config, Session& session,
                       StoredRef<Log> log, const std::optional<PredictedStep>& predicted)
    : config_(config.get().logging),
      session_(session),
      log_(log),
      peak_(peak),
      peak_file_(peak_file(config, session)),
      window_(work),
      ranks_(std::cref(config_), session, log, predicted) {}

void StepLogger::add(const RecordedStep& step, MetricsWriter& metrics, TensorboardMetrics& tensorboard) {
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

void StepLogger::write_line(i64 iteration, const OffloadedBytesByClass& offloaded, MetricsWriter& metrics,
                            TensorboardMetrics& tensorboard) {
  IterationStats stats = window_.means();
  stats.lm_loss = window_.mean_loss();
  stats.ranks = ranks_.report(iteration, window_, offloaded, metrics);
  if (config_.timing_log_level > 0)
    stats.timers =
        gather_timers(std::exchange(timers_, {}), static_cast<double>(window_.iterations()), session_.parallel.world);
  check_peak(peak_.source == DevicePeak::Source::Measured ? window_.peak_tflops() : stats.tflops);
  log_.info(iteration_line(stats, std::chrono::system_clock::now()));
  if (!stats.timers.empty()) log_.info(timer_lines(stats.timers, config_.timing_log_option));
  tensorboard.write_line(stats);
  if (!config_.metrics_every_iteration) metrics.write(stats);
  window_.restart();
}

void StepLogger::check_peak(double reached) {
  const std::string warning = peak_warning(peak_, reached);
  if (warning.empty() || session_.parallel.world.rank() != 0) return;
  const bool is_measured = peak_.source == DevicePeak::Source::Measured;
  // Each small step above a measured peak raises it; only the first and large ones deserve a line.
  constexpr double kNotable = 1.05;
  if (!std::exchange(has_warned_of_peak_, true) || (is_measured && reached > kNotable * peak_.tflops))
    log_.warn(warning);
  if (!is_measured) return;
  peak_.tflops = reached;
  peak_file_.write(reached, log_);
}

}  // namespace mcpp
