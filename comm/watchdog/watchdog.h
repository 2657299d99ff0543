// Watchdog that ends a run in which a rank waits for another rank that does not arrive.
#pragma once
#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "comm/watchdog/flight_recorder.h"
#include "comm/watchdog/hang_detector.h"
#include "comm/watchdog/status_board.h"

namespace mcpp {

/// Monitoring thread that checks the flight recorder and publishes its state on the node's status board. When this rank
/// hangs (HangDetector), it writes to standard error what the rank waits for and its last operations; the first such
/// rank of a node also reports what all its ranks are doing and which did not arrive. Then it ends the process with
/// ExitCode::PeerLost, and thereby the run.
class Watchdog {
 public:
  /// `abort_world` ends all ranks; it may hang, or return without having done so.
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

/// Returns a report on the ranks of a node from two snapshots, taken far enough apart that each live rank must have
/// shown a sign of life: one line per rank, and one that names the ranks that did not arrive.
std::string machine_report(const std::vector<StatusBoard::Status>& before,
                           const std::vector<StatusBoard::Status>& after);

}  // namespace mcpp
