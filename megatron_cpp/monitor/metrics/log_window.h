// What the steps since the last line of the log come to.
#pragma once
#include "megatron_cpp/monitor/metrics/metrics.h"

namespace mcpp {

/// What rates are counted by.
struct SampleWork {
  double tokens = 0, flops = 0;   ///< of one sample
  double peak_tflops = 0;         ///< of one device; 0 = unknown
  bool is_peak_measured = false;  ///< a faster step then raises it: the measurement was disturbed by other load
  i64 devices = 1;
};

/// Steps come in as they are finished, each with the time that the rank had spent when it was queued.
class LogWindow {
 public:
  explicit LogWindow(const SampleWork& work) : work_(work) {}

  /// From `now` on steps count.
  void begin(const RankSeconds& now) { begin_ = end_ = step_begin_ = now; }
  /// `passed` went into something else than training.
  void leave_out(const RankSeconds& passed);
  /// Of `step` all is filled in but times, rates and ranks; its counts of iterations skipped and without a finite loss
  /// are 0 or 1.
  void add(const IterationStats& step, const RankSeconds& end);
  /// After a line of the log: the next window begins where this one ends.
  void restart();

  bool is_empty() const { return iterations_ == 0; }
  i64 iterations() const { return iterations_; }
  /// Returns the peak of one device in TFLOP/s: as given, or that of the fastest step so far where it may be raised.
  double peak_tflops() const { return work_.peak_tflops; }
  /// What this rank spent in the window.
  RankSeconds seconds() const { return end_ - begin_; }
  /// Times and rates as means over the window, the loss of the last step.
  const IterationStats& means() const { return means_; }
  /// Of the steps that were not skipped; NaN without any.
  double mean_loss() const { return loss_sum_ / static_cast<double>(losses_); }
  /// The last step alone; its loss is NaN when it was skipped.
  const IterationStats& last() const { return last_; }

 private:
  void set_rates(IterationStats& stats, double samples) const;

  SampleWork work_;
  IterationStats means_, last_;
  double loss_sum_ = 0;
  i64 losses_ = 0, iterations_ = 0, samples_ = 0;
  RankSeconds begin_, end_, step_begin_;
};

}  // namespace mcpp
