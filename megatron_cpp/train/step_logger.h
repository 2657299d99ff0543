// Logging of training steps to the log, metrics.jsonl and TensorBoard.
#pragma once
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/stored_ref.h"
#include "megatron_cpp/config/sections/logging_config.h"
#include "megatron_cpp/monitor/metrics/metrics.h"
#include "megatron_cpp/monitor/metrics/tensorboard_metrics.h"
#include "megatron_cpp/monitor/statistics.h"
#include "megatron_cpp/monitor/stragglers.h"
#include "megatron_cpp/setup/initialize.h"
#include "megatron_cpp/train/device_peak.h"

namespace mcpp {

// Reports of what each rank spent per log interval: a table of all ranks, and warnings about stragglers.

/// Gathers and reports the statistics of all ranks. All member functions are collective.
class RankReporter {
 public:
  /// `predicted` is the planner's prediction of a step of this layout, if requested.
  RankReporter(StoredRef<LoggingConfig> config, Session& session, StoredRef<Log> log,
               const std::optional<PredictedStep>& predicted);

  /// Reports the iterations of `window`, the last of which is `iteration`. `offloaded` counts the bytes that this rank
  /// offloads. Writes the table of ranks to the metrics, and once to the log, after the first interval that excludes
  /// start-up. Logs warnings. Returns the statistics by rank; empty with one rank.
  std::vector<RankStats> report(i64 iteration, const LogWindow& window, const OffloadedBytesByClass& offloaded,
                                MetricsWriter& metrics);

 private:
  RankStats local_stats(const LogWindow& window, const OffloadedBytesByClass& offloaded) const;
  /// Returns the time each rank spent in each of its groups since the last report. Collective.
  std::vector<GroupSecondsByName> gather_new_group_seconds();
  void warn_of_stragglers(const std::vector<RankStats>& ranks, const std::vector<GroupSecondsByName>& groups,
                          double seconds);

  const LoggingConfig& config_;
  Session& session_;
  const Log& log_;
  bool has_logged_table_ = false, is_warm_ = false;
  i64 tables_ = 0;                    // number of gathered tables
  GroupSecondsByName group_seconds_;  // at the last report
  StragglerReporter slow_ranks_, slow_groups_;
  std::optional<PredictionCheck> check_;
};

/// Finished step.
struct RecordedStep {
  IterationStats stats;                           ///< arguments of LogWindow::add()
  RankTimings end;                                ///< timings of the rank when the step was queued
  std::map<std::string, double> timers;           ///< seconds of the queued work, by name
  StepStatistics statistics;                      ///< statistics of its gradient, and of the weights after it
  const std::vector<LayerRoutingStats>& experts;  ///< statistics of the layers with experts
};

/// Collects and writes the statistics of steps. All member functions are collective.
class StepLogger {
 public:
  /// `predicted` is the planner's prediction of a step of this layout, if requested.
  StepLogger(const SampleWork& work, const DevicePeak& peak, StoredRef<Config> config, Session& session,
             StoredRef<Log> log, const std::optional<PredictedStep>& predicted);

  /// Starts timing at `now`.
  void begin(const RankTimings& now) { window_.begin(now); }
  /// Excludes `passed` from the throughput statistics.
  void exclude_from_timing(const RankTimings& passed) { window_.exclude_from_timing(passed); }
  void add(const RecordedStep& step, MetricsWriter& metrics, TensorboardMetrics& tensorboard);
  /// Returns true if no step was added since the last line.
  bool is_empty() const { return window_.is_empty(); }
  /// Writes a log line for the steps since the previous one; `iteration` is the last of them. `offloaded` counts the
  /// bytes that this rank offloads.
  void write_line(i64 iteration, const OffloadedBytesByClass& offloaded, MetricsWriter& metrics,
                  TensorboardMetrics& tensorboard);

 private:
  /// Warns about steps that are faster than the peak, and stores a measured peak that they exceed.
  void check_peak(double reached);

  const LoggingConfig& config_;
  Session& session_;
  const Log& log_;
  DevicePeak peak_;
  PeakFile peak_file_;
  bool has_warned_of_peak_ = false;
  LogWindow window_;
  RankReporter ranks_;
  IdleExpertDetector idle_experts_;
  std::map<std::string, double> timers_;  // seconds since the last line of the log
};

}  // namespace mcpp
