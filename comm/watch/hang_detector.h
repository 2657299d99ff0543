// When a rank hangs: rules on what its flight recorder shows, without threads and clocks of their own.
#pragma once
#include <map>
#include <optional>
#include <string>

#include "comm/watch/flight_recorder.h"

namespace mcpp {

class HangDetector {
 public:
  /// To be called again and again, `seconds` after the last call; time in which the process itself was stopped does
  /// not count. Returns what is wrong, once an operation was waited for longer than the limit, or a training step
  /// showed no sign of life for as long, or an operation failed on its device.
  std::optional<std::string> check(const Flight& flight, double seconds);

  /// How long others may be waited for now.
  double limit() const { return limit_; }
  /// Seconds that the rank has waited for this operation.
  double waited(const OperationRecord& operation) const;
  /// The one that has been waited for the longest; null when the rank waits for none.
  const OperationRecord* longest_wait(const Flight& flight) const;

 private:
  void follow_steps(const Flight& flight, double seconds);
  double limit_of(const Flight& flight) const;

  std::map<u64, double> waited_;  // seconds by id, of those waited for now
  u64 events_ = 0;
  double quiet_ = 0;  // seconds without an event
  Activity activity_ = Activity::SettingUp;
  i64 iteration_ = 0;
  double in_step_ = 0, longest_step_ = 0;
  double limit_ = HangLimits{}.longest;
};

}  // namespace mcpp
