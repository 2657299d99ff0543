// Log lines of a training run, and the progress line of a terminal.
#pragma once
#include <chrono>
#include <string>
#include <vector>

#include "base/log.h"
#include "base/stored_ref.h"
#include "megatron_cpp/config/sections/logging_config.h"
#include "megatron_cpp/monitor/metrics_sink.h"

namespace mcpp {

/// Formats Megatron-LM's log line, field for field, so that tools for Megatron-LM's logs can read ours, followed by
/// tokens/s, MFU and ETA. A NaN loss is printed as nan.
std::string iteration_line(const IterationStats& stats, std::chrono::system_clock::time_point now);
/// Formats a short line for terminals: "iteration 12/100 | loss 4.567 | 12.3K tokens/s | ETA 3m05s".
std::string progress_line(const IterationStats& stats);
/// Formats Megatron-LM's line for an evaluation, framed by dashes.
std::string validation_lines(const ValidationStats& stats);
/// Formats the timers as Megatron-LM's log lines; "" without timers.
std::string timer_lines(const std::vector<TimerStats>& timers, TimingLogOption option);
/// Formats the statistics by layer as a table.
std::string layer_table(const StepStatistics& step);
/// Formats a table with the time breakdown of each rank, one line per rank.
std::string rank_table(const std::vector<RankStats>& ranks, const Topology& topology);
/// Formats memory_columns() as a table of one line per rank.
std::string memory_table(const std::vector<RankStats>& ranks);

class ConsoleSink final : public MetricsSink {
 public:
  ConsoleSink(StoredRef<LoggingConfig> config, StoredRef<Topology> topology, StoredRef<Log> log)
      : config_(config), topology_(topology), log_(log) {}

  void write_step(const StepRecord& step) override;
  void write_line(const IterationStats& line) override;
  /// Writes the tables once, after the first interval that excludes start-up.
  void write_ranks(const RankTable& table) override;
  void write_evaluation(const ValidationStats& stats) override { log_.info(validation_lines(stats)); }
  void write_task(const TaskStats& stats) override;
  void write_sample(const TextSample& sample) override;
  void write_event(const RunEvent& event) override;

 private:
  const LoggingConfig& config_;
  const Topology& topology_;
  const Log& log_;
  bool has_logged_table_ = false;
};

}  // namespace mcpp
