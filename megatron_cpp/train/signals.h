// Asking the training loop to stop: SIGTERM, SIGINT and SIGUSR1 give up the step, save and exit. A second SIGINT ends
// the process at once.
#pragma once
#include <atomic>
#include <csignal>
#include <functional>
#include <thread>

#include "comm/watchdog/status_board.h"

namespace mcpp {

/// From construction to destruction signals are noted instead of ending the process. One at a time. To be made before
/// the threads that compute, which inherit that it keeps these signals off them: matrix products that oneDNN generates
/// use the stack below its pointer, further than a signal leaves alone, so that one at the wrong moment would corrupt
/// memory. A thread of its own takes them.
class SignalWatch {
 public:
  /// `board`, which outlives this, tells the other ranks of the machine; null: there are none. `say(signal)` is called
  /// in that thread at once, on the first rank of a machine that receives one; it must not wait for anything.
  explicit SignalWatch(StatusBoard* board = nullptr, std::function<void(int signal)> say = nullptr);
  ~SignalWatch();
  SignalWatch(const SignalWatch&) = delete;
  SignalWatch& operator=(const SignalWatch&) = delete;

  /// The signal that asked this rank, or another of its machine, to stop, or 0. Once there is one there always is.
  int received() const;

 private:
  void take(int signal);

  StatusBoard* board_;
  std::function<void(int)> say_;
  std::atomic<int> received_ = 0;
  int interrupts_ = 0;  // of the thread that takes signals
  sigset_t mask_before_;
  std::atomic<bool> ends_ = false;
  std::thread taker_;  // last: it uses all of the above
};

}  // namespace mcpp
