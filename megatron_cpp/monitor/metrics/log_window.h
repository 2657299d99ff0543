// Aggregates the steps since the last log line.
#pragma once
#include "megatron_cpp/monitor/metrics/metrics.h"

namespace mcpp {

/// Work per sample, for throughput.
struct SampleWork {
  double tokens = 0, flops = 0;   ///< per sample
  double peak_tflops = 0;         ///< per device; 0 = unknown
  bool is_peak_measured = false;  ///< a faster step raises the peak, whose measurement was disturbed by other load
  i64 devices = 1;
};

/// Accumulates finished steps. Each comes with the time that the rank had spent when the step was queued.
class LogWindow {
 public:
  explicit LogWindow(const SampleWork& work) : work_(work) {}

  /// Starts counting steps at `now`.
  void begin(const RankTimings& now) { begin_ = end_ = step_begin_ = now; }
  /// Excludes `passed` from the training time.
  void exclude_from_timing(const RankTimings& passed);
  /// Adds a step. All of `step` is filled in except for times, rates and ranks; its counts of skipped iterations and of
  /// iterations without a finite loss are 0 or 1.
  void add(const IterationStats& step, const RankTimings& end);
  /// Starts a new window where this one ends; called after a log line.
  void restart();

  bool is_empty() const { return iterations_ == 0; }
  i64 iterations() const { return iterations_; }
  /// Returns the peak of one device in TFLOP/s: as given, or that of the fastest step if it may be raised.
  double peak_tflops() const { return work_.peak_tflops; }
  /// Returns the time that this rank spent in the window.
  RankTimings seconds() const { return end_ - begin_; }
  /// Returns times and rates as means over the window, and the loss of the last step.
  const IterationStats& means() const { return means_; }
  /// Returns the mean loss of the steps that were not skipped; NaN if there are none.
  double mean_loss() const { return loss_sum_ / static_cast<double>(losses_); }
  /// Returns the last step alone; its loss is NaN if it was skipped.
  const IterationStats& last() const { return last_; }

 private:
  void set_rates(IterationStats& stats, double samples) const;

  SampleWork work_;
  IterationStats means_, last_;
  double loss_sum_ = 0;
  i64 losses_ = 0, iterations_ = 0, samples_ = 0;
  RankTimings begin_, end_, step_begin_;
};

}  // namespace mcpp
