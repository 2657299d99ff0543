// Rules that detect a hanging rank from its flight recorder, without threads or clocks.
#pragma once
#include <map>
#include <optional>
#include <string>

#include "comm/watchdog/flight_recorder.h"

namespace mcpp {

class HangDetector {
 public:
  /// Returns a description of the problem if an operation was waited for longer than the limit, if a training step
  /// showed no activity for that long, or if an operation failed on its device. Call periodically; `seconds` is the
  /// time since the last call, excluding time during which the process was suspended.
  std::optional<std::string> check(const FlightSnapshot& flight, double seconds);

  /// Returns the current limit for waiting for other ranks, in seconds.
  double limit() const { return limit_; }
  /// Returns how many seconds the rank has waited for this operation.
  double waited(const OperationRecord& operation) const;
  /// Returns the operation waited for the longest, or null if there are none.
  const OperationRecord* longest_wait(const FlightSnapshot& flight) const;

 private:
  void follow_steps(const FlightSnapshot& flight, double seconds);
  double limit_of(const FlightSnapshot& flight) const;

  std::map<u64, double> waited_;  // seconds by id, of the operations being waited for
  u64 events_ = 0;
  double idle_seconds_ = 0;  // seconds without an event
  Activity activity_ = Activity::SettingUp;
  i64 iteration_ = 0;
  double seconds_in_step_ = 0, longest_step_ = 0;
  double limit_ = HangTimeouts{}.longest;
};

}  // namespace mcpp
