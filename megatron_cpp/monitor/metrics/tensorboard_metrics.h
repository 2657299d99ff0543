// Training metrics for TensorBoard with Megatron-LM's tags; docs/logging_and_profiling.md lists them.
#pragma once
#include "megatron_cpp/config/config.h"
#include "megatron_cpp/logging/tensorboard.h"
#include "megatron_cpp/monitor/metrics/metrics.h"

namespace mcpp {

/// Position at which training resumes.
struct ResumePoint {
  i64 iteration = 0, consumed_samples = 0;
};

class TensorboardMetrics {
 public:
  /// Opens the folder (TensorboardWriter). `writes` must be true on exactly one rank.
  TensorboardMetrics(StoredRef<Config> config, bool writes, StoredRef<Log> log);

  /// Prepares the folder; call it before anything is written. Drops events of earlier starts for steps that will be
  /// repeated, and evaluations missing from `metrics`, since they will be repeated too. Writes the configuration.
  void begin(const ResumePoint& at, const MetricsWriter& metrics);
  /// Writes a single step, at logging.tensorboard_log_interval.
  void write(const IterationStats& step, const MemoryUse& memory);
  /// Writes what is only known for a log line.
  void write_line(const IterationStats& line);
  void write(const ValidationStats& stats, i64 consumed_samples);
  /// Writes curves of each layer and histograms, if present.
  void write(const StepStatistics& statistics, i64 iteration);

 private:
  class Record;
  const Config& config_;
  TensorboardWriter writer_;
};

/// Returns true if an event of an earlier start is still valid for a run resumed at `at`. An evaluation at that
/// iteration is valid only if `has_evaluation(split)`.
bool is_valid_after_resume(i64 step, std::string_view tag, const ResumePoint& at,
                           const std::function<bool(const std::string& split)>& has_evaluation);

}  // namespace mcpp
