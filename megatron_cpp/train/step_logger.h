// Logging of training steps to the log, metrics.jsonl and TensorBoard.
#pragma once
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/stored_ref.h"
#include "megatron_cpp/monitor/expert_stats.h"
#include "megatron_cpp/monitor/metrics/log_window.h"
#include "megatron_cpp/monitor/metrics/tensorboard_metrics.h"
#include "megatron_cpp/monitor/statistics.h"
#include "megatron_cpp/train/device_peak.h"
#include "megatron_cpp/train/rank_reporter.h"

namespace mcpp {

/// Finished step.
struct RecordedStep {
  IterationStats stats;                           ///< as LogWindow::add() takes them
  RankTimings end;                                ///< timings of the rank when the step was queued
  std::map<std::string, double> timers;           ///< seconds of the queued work, by name
  StepStatistics statistics;                      ///< of its gradient, and of the weights after it
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
  /// Warns of steps that are faster than the peak, and stores a measured peak that they exceed.
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
