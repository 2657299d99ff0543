// The numbers of a training as TensorBoard shows them, by Megatron-LM's tags; docs/seeing_a_run.md lists them.
#pragma once
#include "megatron_cpp/config/config.h"
#include "megatron_cpp/logging/tensorboard.h"
#include "megatron_cpp/monitor/metrics/metrics.h"

namespace mcpp {

/// Where the training goes on from.
struct ResumedAt {
  i64 iteration = 0, consumed_samples = 0;
};

class TensorboardMetrics {
 public:
  /// Looks at the folder (TensorboardWriter). `writes`: on one rank. Both outlive this.
  TensorboardMetrics(KeptRef<Config> config, bool writes, KeptRef<Log> log);

  /// Before anything is written: drops what earlier starts wrote of steps that come again, and evaluations that
  /// `metrics` does not have, because they are owed. Writes the configuration.
  void begin(const ResumedAt& at, const MetricsWriter& metrics);
  /// One step alone, at logging.tensorboard_log_interval.
  void write(const IterationStats& step, const MemoryUse& memory);
  /// What is only known at a line of the log.
  void write_line(const IterationStats& line);
  void write(const ValidationStats& stats, i64 consumed_samples);
  /// Curves of each layer and histograms, as far as the step has them.
  void write(const StepStatistics& statistics, i64 iteration);

 private:
  class Record;
  const Config& config_;
  TensorboardWriter writer_;
};

/// Whether an event of an earlier start stands in a run that goes on at `at`. An evaluation done there belongs to the
/// run only with `has_evaluation`, asked by its split.
bool stands_in_resumed_run(i64 step, std::string_view tag, const ResumedAt& at,
                           const std::function<bool(const std::string& split)>& has_evaluation);

}  // namespace mcpp
