// What is told of the steps of a training: lines of the log, metrics.jsonl and TensorBoard.
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
#include "megatron_cpp/train/rank_reports.h"

namespace mcpp {

/// A step that is finished.
struct RecordedStep {
  IterationStats stats;                           ///< as LogWindow::add() takes them
  RankTimings end;                                ///< what the rank had spent when it was queued
  std::map<std::string, double> timers;           ///< seconds of what it queued, by name
  StepStatistics statistics;                      ///< of its gradient, and of the weights after it
  const std::vector<LayerRoutingStats>& experts;  ///< of the layers with experts
};

/// Called by all ranks alike.
class StepRecords {
 public:
  /// `predicted`: of a step of this layout; nothing where nobody asked for it.
  StepRecords(const SampleWork& work, const DevicePeak& peak, StoredRef<Config> config, Session& session,
              StoredRef<Log> log, const std::optional<PredictedStep>& predicted);

  /// From `now` on steps count.
  void begin(const RankTimings& now) { window_.begin(now); }
  /// `passed` went into something else than training.
  void exclude_from_timing(const RankTimings& passed) { window_.exclude_from_timing(passed); }
  void add(const RecordedStep& step, MetricsWriter& metrics, TensorboardMetrics& tensorboard);
  /// Whether a line would have no step to tell of.
  bool is_empty() const { return window_.is_empty(); }
  /// A line of the log for the steps since the one before, of which `iteration` is the last. `away`: what this rank
  /// keeps elsewhere.
  void write_line(i64 iteration, const OffloadedBytesByClass& away, MetricsWriter& metrics,
                  TensorboardMetrics& tensorboard);

 private:
  /// Warns of steps that are faster than the peak, and stores a peak that they raised.
  void check_peak(double reached);

  const LoggingConfig& config_;
  Session& session_;
  const Log& log_;
  DevicePeak peak_;
  PeakFile peak_file_;
  bool has_warned_of_peak_ = false;
  LogWindow window_;
  RankReports ranks_;
  IdleExpertDetector idle_experts_;
  std::map<std::string, double> timers_;  // seconds since the last line of the log
};

}  // namespace mcpp
