// Asking the training loop to stop: SIGTERM, SIGINT and SIGUSR1 finish the step, save and exit. A second SIGINT ends
// the process at once.
#pragma once
#include <atomic>
#include <csignal>
#include <thread>

namespace mcpp {

/// From construction to destruction signals are noted instead of ending the process. One at a time. To be made before
/// the threads that compute, which inherit that it keeps these signals off them: matrix products that oneDNN generates
/// use the stack below its pointer, further than a signal leaves alone, so that one at the wrong moment would corrupt
/// memory. A thread of its own takes them.
class SignalWatch {
 public:
  SignalWatch();
  ~SignalWatch();
  SignalWatch(const SignalWatch&) = delete;
  SignalWatch& operator=(const SignalWatch&) = delete;

  /// The signal that asked to stop, or 0.
  int received() const;

 private:
  sigset_t mask_before_;
  std::atomic<bool> ends_ = false;
  std::thread taker_;  // last: it uses all of the above
};

}  // namespace mcpp
