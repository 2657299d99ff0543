#include "megatron_cpp/train/step_logger.h"

#include <chrono>
#include <utility>

namespace mcpp {

RankReporter::RankReporter(StoredRef<LoggingConfig> config, Session& session, StoredRef<Log> log,
                           const std::optional<PredictedStep>& predicted)
    : config_(config), session_(session), log_(log) {
  if (predicted) check_.emplace(*predicted);
}

RankStats RankReporter::local_stats(const LogWindow& line, const OffloadedBytesByClass& offloaded) const {
  const RankTimings window = line.seconds();
  const MemoryTable& memory = session_.device->memory();
  RankStats stats{.peak_memory_bytes = static_cast<double>(memory.total.peak),
                  .bubble = window.pipeline / window.clock,
                  .exposed_communication = window.communication / window.clock,
                  .compute_ms = 1e3 * window.compute() / static_cast<double>(line.iterations()),
                  .offloaded = offloaded};
  for (std::size_t c = 0; c < kMemoryClasses; ++c)
    stats.peak_by_class[c] = static_cast<double>(memory.by_class[c].peak);
  return stats;
}

std::vector<RankStats> RankReporter::report(i64 iteration, const LogWindow& window,
                                            const OffloadedBytesByClass& offloaded, MetricsWriter& metrics) {
  Communicator& world = session_.parallel.world;
  std::vector<RankStats> ranks{local_stats(window, offloaded)};
  if (world.size() > 1) ranks = gather_rank_stats(ranks.front(), world, *session_.device);
  // With many ranks the table is not written at every line, so that tables take about as much of the file as lines.
  constexpr i64 kRanksPerLine = 16;
  if (tables_++ % (1 + (world.size() - 1) / kRanksPerLine) == 0)
    metrics.write(RankTable{.iteration = iteration, .ranks = ranks});
  std::vector<GroupSecondsByName> groups;
  if (world.size() > 1 && (config_.straggler_factor > 0 || check_)) groups = gather_new_group_seconds();
  const bool is_cold = !std::exchange(is_warm_, true);  // the first interval includes the start-up
  if (check_ && !is_cold)
    for (const std::string& text :
         check_->add(window.last().global_batch_size,
                     make_measured_run(1e-3 * window.means().elapsed_ms, ranks, groups, window.iterations())))
      log_.warn(text);
  if (iteration > 1 && !std::exchange(has_logged_table_, true)) {
    if (world.size() > 1) log_.info(rank_table(ranks, session_.parallel.topology));
    log_.info(memory_table(ranks));
  }
  if (world.size() == 1) return {};
  if (config_.straggler_factor > 0) warn_of_stragglers(ranks, groups, window.seconds().clock);
  return ranks;
}

std::vector<GroupSecondsByName> RankReporter::gather_new_group_seconds() {
  const GroupSecondsByName now = group_seconds(session_.parallel);
  return gather_group_seconds(now - std::exchange(group_seconds_, now), session_.parallel.world);
}

void RankReporter::warn_of_stragglers(const std::vector<RankStats>& ranks,
                                      const std::vector<GroupSecondsByName>& groups, double seconds) {
  const double factor = config_.straggler_factor;
  for (const auto& text : {slow_ranks_.add(find_slow_rank(ranks, session_.parallel.topology, factor)),
                           slow_groups_.add(find_slow_group(groups, seconds, factor))})
    if (text) log_.warn(*text);
}

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
  // Each small step above a measured peak raises it; only the first and large ones are logged.
  constexpr double kNotable = 1.05;
  if (!std::exchange(has_warned_of_peak_, true) || (is_measured && reached > kNotable * peak_.tflops))
    log_.warn(warning);
  if (!is_measured) return;
  peak_.tflops = reached;
  peak_file_.write(reached, log_);
}

}  // namespace mcpp
