// Logging of a training run to all destinations of its metrics.
#pragma once
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "megatron_cpp/config/config.h"
#include "megatron_cpp/monitor/metrics_sink.h"
#include "megatron_cpp/monitor/rank_report.h"
#include "megatron_cpp/monitor/statistics.h"
#include "megatron_cpp/setup/device_peaks.h"
#include "megatron_cpp/setup/initialize.h"

namespace mcpp {

/// Fills in tokens_per_second, tflops, mfu and eta_seconds from elapsed_ms and the work of one iteration, `tokens` and
/// `flops`, on `devices` devices with a peak of `peak_tflops` each (0 = unknown).
void set_rates(IterationStats& stats, double tokens, double flops, double peak_tflops, i64 devices = 1);

/// Work per sample, from which throughput is computed.
struct SampleWork {
  double tokens = 0, flops = 0;  ///< work per sample
  i64 devices = 1;
  DevicePeak peak = {};  ///< measured peaks are raised to the speed of faster steps
};

/// Accumulates the steps since the last log line. Each step is added with the time that the rank had spent when the
/// step was queued.
class LogWindow {
 public:
  explicit LogWindow(const SampleWork& work = {}) : work_(work) {}

  /// Starts counting steps at `now`.
  void begin(const RankTimings& now) { begin_ = end_ = step_begin_ = now; }
  /// Excludes `passed` from the training time.
  void exclude_from_timing(const RankTimings& passed);
  /// Adds a step. All members of `step` except times, rates and ranks must be set; its counts of skipped iterations and
  /// of iterations without a finite loss are 0 or 1.
  void add(const IterationStats& step, const RankTimings& end);
  /// Starts a new window where this one ends; called after a log line.
  void restart();

  bool is_empty() const { return iterations_ == 0; }
  i64 iterations() const { return iterations_; }
  /// Returns the peak of one device in TFLOP/s. A measured peak is raised to the rate of the fastest step so far.
  double peak_tflops() const { return work_.peak.tflops; }
  /// Returns the time that this rank spent in the window.
  RankTimings seconds() const { return end_ - begin_; }
  /// Returns times and rates as means over the window, and the loss of the last step.
  const IterationStats& means() const { return means_; }
  /// Returns the mean loss of the steps that were not skipped; NaN if there are none.
  double mean_loss() const { return loss_sum_ / static_cast<double>(losses_); }
  /// Returns the values of the last step; its loss is NaN if the step was skipped.
  const IterationStats& last() const { return last_; }

 private:
  void set_rates(IterationStats& stats, double samples) const;

  SampleWork work_;
  IterationStats means_, last_;
  double loss_sum_ = 0;
  i64 losses_ = 0, iterations_ = 0, samples_ = 0;
  RankTimings begin_, end_, step_begin_;
};

/// Finished step to be logged.
struct FinishedStep {
  IterationStats stats;                           ///< arguments of LogWindow::add()
  RankTimings end;                                ///< timings of the rank when the step was queued
  std::map<std::string, double> timers;           ///< seconds of the queued work, by name
  StepStatistics statistics;                      ///< statistics of the gradient, and of the weights after the step
  const std::vector<LayerRoutingStats>& experts;  ///< statistics of the layers with experts
};

/// Logs steps, ranks, evaluations and events of a run to its sinks: the console, metrics.jsonl and TensorBoard. Also
/// warns about stragglers, idle experts, deviations from the predicted step, and steps above the device's peak. Every
/// rank has a logger, because logging is collective; the logger of rank 0 owns the sinks.
class TrainingLogger {
 public:
  /// Creates the sinks that the configuration requests. `predicted` is the planner's prediction of a step of this
  /// layout, if requested.
  TrainingLogger(StoredRef<Config> config, Session& session, StoredRef<Log> log,
                 const std::optional<PredictedStep>& predicted = std::nullopt);

  /// Determines the device's peak, the denominator of MFU. Call it before the model allocates memory. Collective.
  void find_peak();
  /// Opens the sinks for a run that continues from `at`. This may replace files of a different run.
  void begin(ResumePoint at);
  void log_start(i64 train_iters);

  /// Starts timing at `now`.
  void begin_timing(const RankTimings& now) { window_.begin(now); }
  /// Excludes `passed` from the throughput statistics.
  void exclude_from_timing(const RankTimings& passed) { window_.exclude_from_timing(passed); }
  void log_step(const FinishedStep& step);
  /// Returns true if there were steps since the last line.
  bool has_unlogged_steps() const { return !window_.is_empty(); }
  /// Logs the means of the steps since the previous line, and the statistics of the ranks. `offloaded` counts the bytes
  /// that this rank offloads. Collective.
  void log_line(const OffloadedBytesByClass& offloaded);

  void log_evaluation(const ValidationStats& stats);
  /// Returns true if this split or task was evaluated at the iteration, by this run or, on rank 0, by the run that it
  /// resumes.
  bool has_evaluation(const std::string& split, i64 iteration) const {
    return evaluations_.contains({split, iteration});
  }
  void log_task(const TaskStats& stats);
  void log_sample(const TextSample& sample);
  void log_event(const RunEvent& event);
  /// Returns the last rank that was reported as slower than ranks with the same work, -1 if there is none. The same on
  /// all ranks with training.straggler_policy = "stop"; otherwise only rank 0 knows it.
  i32 slow_rank() const { return slow_rank_; }

 private:
  /// Gathers the statistics of all ranks since the last line, logs them, and warns about stragglers and deviations from
  /// the prediction. Returns the statistics; the result is empty if there is only one rank.
  std::vector<RankStats> log_ranks(const OffloadedBytesByClass& offloaded);
  /// Logs the straggler if `reporter` does not filter it.
  void report_straggler(const std::optional<Straggler>& straggler, StragglerReporter& reporter);
  RankStats local_stats(const OffloadedBytesByClass& offloaded) const;
  void check_prediction(const std::vector<RankStats>& ranks, const std::vector<GroupSecondsByName>& groups);
  /// Warns about steps that are faster than the peak. If the peak was measured, raises it to `reached` and stores it.
  void check_peak(double reached);

  const Config& config_;
  Session& session_;
  const Log& log_;
  std::vector<std::unique_ptr<MetricsSink>> sinks_;
  ResumePoint start_;
  std::set<std::pair<std::string, i64>> evaluations_;  // evaluations done, as (split, iteration)
  LogWindow window_;
  DevicePeak peak_;  // peak of the device; if measured, raised at each line when a step exceeded it
  bool has_warned_of_peak_ = false;
  std::map<std::string, double> timers_;  // seconds since the last line
  bool is_warm_ = false;                  // the first line, which includes the start-up, has been logged
  GroupSecondsByName group_seconds_;      // at the last line
  StragglerReporter slow_ranks_, slow_groups_;
  i32 slow_rank_ = -1;
  std::optional<PredictionCheck> prediction_;
  IdleExpertDetector idle_experts_;
};

/// Objects that all parts of a training run use.
struct RunContext {
  const Config& config;
  Session& session;
  const Log& log;
  TrainingLogger& logger;

  Communicator& world() const { return session.parallel.world; }
};

}  // namespace mcpp
