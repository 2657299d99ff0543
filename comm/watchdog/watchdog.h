// Watchdog that terminates a run in which a rank waits too long for another rank.
#pragma once
#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "comm/watchdog/flight_recorder.h"
#include "comm/watchdog/status_board.h"

namespace mcpp {

/// Rules that detect a hanging rank from its flight recorder, without threads or clocks.
class HangDetector {
 public:
  /// Returns a description of the problem if an operation was waited for longer than the limit, if a training step
  /// showed no activity for that long, or if an operation failed on its device. Call periodically; `seconds` is the
  /// time since the last call, excluding time during which the process was suspended.
  std::optional<std::string> check(const FlightSnapshot& flight, double seconds);

  /// Returns the current limit for waiting for other ranks, in seconds.
  double limit() const { return limit_; }
  /// Returns the seconds that the rank has waited for this operation.
  double waited(const OperationRecord& operation) const;
  /// Returns the operation with the longest wait, or null if there is none.
  const OperationRecord* longest_wait(const FlightSnapshot& flight) const;

 private:
  void follow_steps(const FlightSnapshot& flight, double seconds);
  double limit_of(const FlightSnapshot& flight) const;

  std::map<u64, double> waited_;  // seconds waited so far, by operation id
  u64 events_ = 0;
  double idle_seconds_ = 0;  // seconds since the last event
  Activity activity_ = Activity::SettingUp;
  i64 iteration_ = 0;
  double seconds_in_step_ = 0, longest_step_ = 0;
  double limit_ = HangTimeouts{}.distributed;
};

/// Monitoring thread that checks the flight recorder and publishes its state on the node's status board. When this rank
/// hangs (HangDetector), it writes the awaited operation and the last operations to standard error. The first such rank
/// of a node also reports the activity of all ranks of the node and names those that did not arrive. Then it terminates
/// the process with ExitCode::PeerLost, which ends the run.
class Watchdog {
 public:
  /// `abort_world` terminates all ranks; it may hang, or return without terminating them.
  Watchdog(FlightRecorder& recorder, StatusBoard& board, std::function<void()> abort_world);
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

 private:
  /// Returns false when the watchdog is being destroyed.
  bool sleep(double seconds);
  void watch();
  void poll_device();
  [[noreturn]] void end_run(const FlightSnapshot& flight, const std::string& reason);
  void show(const FlightSnapshot& flight);

  FlightRecorder& recorder_;
  StatusBoard& board_;
  std::function<void()> abort_world_;
  HangDetector detector_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_stopping_ = false;
  std::thread watcher_, poller_;
};

/// Returns a report on the ranks of a node: one line per rank, and a line that names the ranks that did not arrive. The
/// two snapshots must be far enough apart that the heartbeats of each live rank have increased.
std::string node_report(const std::vector<StatusBoard::Status>& before, const std::vector<StatusBoard::Status>& after);

}  // namespace mcpp
