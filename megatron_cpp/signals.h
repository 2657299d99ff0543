// Asking the training loop to stop: SIGTERM, SIGINT and SIGUSR1 finish the step, save and exit. A second SIGINT ends
// the process at once.
#pragma once

namespace mcpp {

/// From construction to destruction signals are noted instead of ending the process. One at a time.
class SignalWatch {
 public:
  SignalWatch();
  ~SignalWatch();
  SignalWatch(const SignalWatch&) = delete;
  SignalWatch& operator=(const SignalWatch&) = delete;

  /// The signal that asked to stop, or 0.
  int received() const;
};

}  // namespace mcpp
