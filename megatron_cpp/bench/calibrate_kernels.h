// What a rank's kernels take, as the planner wants to know it (plan/measured_rates.h).
#pragma once
#include <functional>

#include "megatron_cpp/bench/calibrate.h"

namespace mcpp {

/// Times on all ranks at once.
class CalibrationClock {
 public:
  CalibrationClock(Device& device, Communicator& ranks, double seconds_each)
      : device_(device), ranks_(ranks), seconds_each_(seconds_each) {}

  Device& device() const { return device_; }
  Communicator& ranks() const { return ranks_; }
  /// What a call of f takes while all ranks make such calls, after one that does not count, in which pages of results
  /// are touched: the mean over them.
  double seconds(const std::function<void()>& f);
  /// The same where all memory has been touched: the first call counts when it is long.
  double warm_seconds(const std::function<void()>& f);
  /// Of what ranks do together, the median of several calls; all make as many.
  double together(const std::function<void()>& f);
  /// Standard deviation of all that seconds() measured, over the ranks, of its mean.
  double spread_of_ranks();

 private:
  double mean_over_ranks(double value);

  Device& device_;
  Communicator& ranks_;
  double seconds_each_;
  double all_ = 0;  // of this rank
};

/// All in one precision, once.
MeasuredRates measure_kernels(CalibrationClock& clock, DType dtype, const CalibrationSizes& sizes);

}  // namespace mcpp
