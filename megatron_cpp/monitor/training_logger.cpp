#include "megatron_cpp/monitor/training_logger.h"

#include <algorithm>
#include <cmath>

#include "base/machine.h"
#include "base/strings.h"
#include "comm/object_collectives.h"
#include "megatron_cpp/monitor/alert_sink.h"
#include "megatron_cpp/monitor/console_sink.h"
#include "megatron_cpp/monitor/jsonl_sink.h"
#include "megatron_cpp/monitor/otlp_sink.h"
#include "megatron_cpp/monitor/tensorboard_sink.h"
#include "megatron_cpp/setup/version.h"
#include "model/flops.h"

namespace mcpp {

void set_rates(IterationStats& stats, double tokens, double flops, double peak_tflops, i64 devices) {
  const double seconds = stats.elapsed_ms / 1000;
  if (seconds > 0) {
    stats.tokens_per_second = tokens / seconds;
    stats.tflops = flops / seconds / 1e12 / static_cast<double>(devices);
  }
  if (peak_tflops > 0) stats.mfu = stats.tflops / peak_tflops;
  stats.eta_seconds = static_cast<double>(stats.train_iters - stats.iteration) * seconds;
}

double ValidationStats::perplexity() const {
  return std::exp(std::isnan(lm_loss) ? lm_loss : std::min(20.0, lm_loss));
}

void LogWindow::exclude_from_timing(const RankTimings& passed) {
  begin_ += passed;
  step_begin_ += passed;
}

void LogWindow::add(const IterationStats& step, const RankTimings& end) {
  const bool is_skipped = step.skipped_iterations > 0;
  iterations_ += 1;
  samples_ += step.global_batch_size;
  if (!is_skipped) {
    losses_ += 1;
    loss_sum_ += step.lm_loss;
  }
  last_ = step;
  if (is_skipped) last_.lm_loss = std::nan("");
  last_.elapsed_ms = 1000 * (end - step_begin_).clock;
  set_rates(last_, static_cast<double>(step.global_batch_size));
  if (work_.peak.source == DevicePeak::Source::Measured && last_.tflops > work_.peak.tflops) {
    work_.peak.tflops = last_.tflops;
    set_rates(last_, static_cast<double>(step.global_batch_size));
  }
  const i64 skipped = means_.skipped_iterations, nan = means_.nan_iterations;
  means_ = step;
  means_.skipped_iterations += skipped;
  means_.nan_iterations += nan;
  end_ = step_begin_ = end;
  const auto iterations = static_cast<double>(iterations_);
  means_.elapsed_ms = 1000 * seconds().clock / iterations;
  set_rates(means_, static_cast<double>(samples_) / iterations);
}

void LogWindow::restart() {
  LogWindow next(work_);
  next.begin_ = next.end_ = end_;
  next.step_begin_ = step_begin_;
  *this = next;
}

void LogWindow::set_rates(IterationStats& stats, double samples) const {
  mcpp::set_rates(stats, samples * work_.tokens, samples * work_.flops, work_.peak.tflops, work_.devices);
}

namespace {

/// Creates the sinks. They write in this order: metrics.jsonl is last, because a resumed run does not repeat the
/// evaluations that it contains.
std::vector<std::unique_ptr<MetricsSink>> make_sinks(const Config& config, const Session& session, const Log& log) {
  std::vector<std::unique_ptr<MetricsSink>> sinks;
  if (session.parallel.world.rank() != 0) return sinks;
  const LoggingConfig& logging = config.logging;
  sinks.push_back(
      std::make_unique<ConsoleSink>(std::cref(logging), std::cref(session.parallel.topology), std::cref(log)));
  if (!logging.tensorboard_dir.empty())
    sinks.push_back(std::make_unique<TensorboardSink>(std::cref(config), std::cref(log)));
  if (!logging.otlp_endpoint.empty())
    sinks.push_back(
        std::make_unique<OtlpSink>(otlp_target(logging.otlp_endpoint, config.checkpoint.save), std::cref(log)));
  if (logging.has_alerts())
    sinks.push_back(std::make_unique<AlertSink>(logging, config.checkpoint.save, std::cref(log)));
  if (const Path path = config.metrics_path(); !path.empty())
    sinks.push_back(std::make_unique<JsonlSink>(path, logging.metrics_every_iteration, std::cref(log)));
  return sinks;
}

}  // namespace

TrainingLogger::TrainingLogger(StoredRef<Config> config, Session& session, StoredRef<Log> log,
                               const std::optional<PredictedStep>& predicted)
    : config_(config), session_(session), log_(log), sinks_(make_sinks(config, session, log)) {
  if (predicted) prediction_.emplace(*predicted);
}

void TrainingLogger::find_peak() {
  peak_ = find_device_peak(config_, session_, log_);
  window_ = LogWindow({.tokens = static_cast<double>(config_.model.seq_length),
                       .flops = flops_per_batch(config_.model, 1),
                       .devices = session_.parallel.world.size(),
                       .peak = peak_});
}

void TrainingLogger::begin(ResumePoint at) {
  // In reverse, because metrics.jsonl states the evaluations whose events TensorBoard keeps.
  for (auto sink = sinks_.rbegin(); sink != sinks_.rend(); ++sink) (*sink)->begin(at);
  for (const std::string& split : at.evaluations) evaluations_.insert({split, at.iteration});
  start_ = std::move(at);
}

void TrainingLogger::log_start(i64 train_iters) {
  const RunStart start{.iteration = start_.iteration,
                       .train_iters = train_iters,
                       .world_size = session_.parallel.world.size(),
                       .stage = config_.stage ? config_.stage->name : std::string(),
                       .host = host_name(),
                       .program = split(version_text(), '\n').front(),
                       .device = std::string(enum_name(config_.device.device)),
                       .config = print_config(config_)};
  for (const auto& sink : sinks_) sink->write_start(start);
}

void TrainingLogger::log_step(const FinishedStep& step) {
  for (const auto& [name, seconds] : step.timers) timers_[name] += seconds;
  window_.add(step.stats, step.end);
  for (const std::string& warning : idle_experts_.add(step.experts)) log_.warn(warning);
  const StepRecord record{.step = window_.last(),
                          .means = window_.means(),
                          .statistics = step.statistics,
                          .memory = session_.device->memory().total};
  for (const auto& sink : sinks_) sink->write_step(record);
}

void TrainingLogger::log_line(const OffloadedBytesByClass& offloaded) {
  IterationStats line = window_.means();
  line.lm_loss = window_.mean_loss();
  line.ranks = log_ranks(offloaded);
  // Only rank 0 compares the ranks, but all must stop in the same iteration.
  if (config_.training.straggler_policy == StragglerPolicy::Stop) broadcast_value(slow_rank_, session_.parallel.world);
  if (config_.logging.timing_log_level > 0)
    line.timers =
        gather_timers(std::exchange(timers_, {}), static_cast<double>(window_.iterations()), session_.parallel.world);
  check_peak(peak_.source == DevicePeak::Source::Measured ? window_.peak_tflops() : line.tflops);
  for (const auto& sink : sinks_) sink->write_line(line);
  window_.restart();
}

std::vector<RankStats> TrainingLogger::log_ranks(const OffloadedBytesByClass& offloaded) {
  const ParallelState& parallel = session_.parallel;
  const double factor = config_.logging.straggler_factor;
  const bool has_peers = parallel.world.size() > 1;
  std::vector<RankStats> ranks{local_stats(offloaded)};
  if (has_peers) ranks = gather_rank_stats(ranks.front(), session_.parallel.world);
  std::vector<GroupSecondsByName> groups;
  if (has_peers && (factor > 0 || prediction_)) {
    const GroupSecondsByName now = group_seconds(parallel);
    groups = gather_group_seconds(now - std::exchange(group_seconds_, now), session_.parallel.world);
  }
  if (ranks.empty()) return {};  // rank 0 reports
  check_prediction(ranks, groups);
  for (const auto& sink : sinks_) sink->write_ranks({.iteration = window_.last().iteration, .ranks = ranks});
  if (!has_peers) return {};
  if (factor > 0) {
    report_straggler(find_slow_rank(ranks, parallel.topology, factor), slow_ranks_);
    report_straggler(find_slow_group(groups, window_.seconds().clock, factor), slow_groups_);
  }
  return ranks;
}

void TrainingLogger::report_straggler(const std::optional<Straggler>& straggler, StragglerReporter& reporter) {
  const std::optional<std::string> text = reporter.add(straggler);
  if (!text) return;
  if (straggler->rank >= 0) slow_rank_ = straggler->rank;
  log_event({.kind = RunEvent::Kind::Straggler,
             .iteration = window_.last().iteration,
             .text = *text,
             .console = RunEvent::Console::Warning});
}

RankStats TrainingLogger::local_stats(const OffloadedBytesByClass& offloaded) const {
  const RankTimings spent = window_.seconds();
  const MemoryTable& memory = session_.device->memory();
  RankStats stats{.peak_memory_bytes = static_cast<double>(memory.total.peak),
                  .bubble = spent.pipeline / spent.clock,
                  .exposed_communication = spent.communication / spent.clock,
                  .compute_ms = 1e3 * spent.compute() / static_cast<double>(window_.iterations()),
                  .offloaded = offloaded};
  for (std::size_t c = 0; c < kMemoryClasses; ++c)
    stats.peak_by_class[c] = static_cast<double>(memory.by_class[c].peak);
  return stats;
}

void TrainingLogger::check_prediction(const std::vector<RankStats>& ranks,
                                      const std::vector<GroupSecondsByName>& groups) {
  if (!std::exchange(is_warm_, true) || !prediction_) return;
  const MeasuredRun measured =
      make_measured_run(1e-3 * window_.means().elapsed_ms, ranks, groups, window_.iterations());
  for (const std::string& text : prediction_->add(window_.last().global_batch_size, measured)) log_.warn(text);
}

void TrainingLogger::check_peak(double reached) {
  const std::string warning = peak_warning(peak_, reached);
  if (warning.empty() || session_.parallel.world.rank() != 0) return;
  const bool is_measured = peak_.source == DevicePeak::Source::Measured;
  // Each small step above a measured peak raises it; only the first and large ones are logged.
  constexpr double kNotable = 1.05;
  if (!std::exchange(has_warned_of_peak_, true) || (is_measured && reached > kNotable * peak_.tflops))
    log_.warn(warning);
  if (!is_measured) return;
  peak_.tflops = reached;
  peak_file(config_, session_).write(reached, log_);
}

void TrainingLogger::log_evaluation(const ValidationStats& stats) {
  evaluations_.insert({stats.split, stats.iteration});
  for (const auto& sink : sinks_) sink->write_evaluation(stats);
}

void TrainingLogger::log_task(const TaskStats& stats) {
  evaluations_.insert({stats.split(), stats.iteration});
  for (const auto& sink : sinks_) sink->write_task(stats);
}

void TrainingLogger::log_sample(const TextSample& sample) {
  for (const auto& sink : sinks_) sink->write_sample(sample);
}

void TrainingLogger::log_event(const RunEvent& event) {
  for (const auto& sink : sinks_) sink->write_event(event);
}

}  // namespace mcpp
