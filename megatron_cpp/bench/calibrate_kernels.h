// Measurement of a rank's kernels for the planner (plan/hardware/hardware.h).
#pragma once
#include <functional>

#include "megatron_cpp/bench/calibrate.h"

namespace mcpp {

/// Timer for calls that all ranks make concurrently.
class CalibrationClock {
 public:
  CalibrationClock(Device& device, Communicator& ranks, double seconds_each)
      : device_(device), ranks_(ranks), seconds_each_(seconds_each) {}

  Device& device() const { return device_; }
  Communicator& ranks() const { return ranks_; }
  /// Returns the mean over ranks of the seconds per call, while all ranks make such calls. Excludes a first call, which
  /// touches the pages of results.
  double seconds(const std::function<void()>& f);
  /// Same as seconds(), for memory that was touched before: a long first call counts.
  double warm_seconds(const std::function<void()>& f);
  /// Returns the median of several calls of a collective function; all ranks make the same number of calls.
  double collective_seconds(const std::function<void()>& f);
  /// Returns the relative standard deviation over ranks of everything that seconds() measured.
  double rank_spread();

 private:
  double mean_over_ranks(double value);

  Device& device_;
  Communicator& ranks_;
  double seconds_each_;
  double all_ = 0;  // of this rank
};

/// Measures all kernels once in one precision.
MeasuredRates measure_kernels(CalibrationClock& clock, DType dtype, const CalibrationSizes& sizes);

}  // namespace mcpp
