// Ends a run in which a rank waits for another that does not come.
#pragma once
#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "comm/watch/flight_recorder.h"
#include "comm/watch/hang_detector.h"
#include "comm/watch/status_board.h"

namespace mcpp {

/// While it lives, a thread looks at what the recorder shows and tells it to the ranks of the machine. When this rank
/// hangs (HangDetector), it writes to standard error what the rank waits for and did last; the first one of a machine
/// also what all of its ranks do, and who did not come. Then it ends the process with ExitCode::PeerLost, and the run
/// with it.
class Watchdog {
 public:
  /// `abort_world` ends all ranks; it may hang, or return without having done so. The recorder and the board outlive
  /// the watchdog.
  Watchdog(FlightRecorder& recorder, StatusBoard& board, std::function<void()> abort_world);
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

 private:
  /// False when the watchdog ends.
  bool sleep(double seconds);
  void watch();
  void poll_device();
  [[noreturn]] void end_run(const Flight& flight, const std::string& reason);
  void show(const Flight& flight);

  FlightRecorder& recorder_;
  StatusBoard& board_;
  std::function<void()> abort_world_;
  HangDetector detector_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool ends_ = false;
  std::thread watcher_, poller_;
};

/// What the ranks of a machine were seen to do before and after a time in which each alive one must have shown
/// something: a line for each, and one that names those who did not come.
std::string machine_report(const std::vector<StatusBoard::Status>& before,
                           const std::vector<StatusBoard::Status>& after);

}  // namespace mcpp
