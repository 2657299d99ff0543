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
  /// The shortest of several calls of f, while all ranks make them; of the slowest rank.
  double seconds(const std::function<void()>& f);
  /// The same of what ranks do together: all make as many calls.
  double together(const std::function<void()>& f);

 private:
  double of_slowest(double seconds);

  Device& device_;
  Communicator& ranks_;
  double seconds_each_;
};

MeasuredRates measure_kernels(CalibrationClock& clock, DType dtype, const CalibrationSizes& sizes);

}  // namespace mcpp
