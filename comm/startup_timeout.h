// Timeout for the start of the ranks, before a Watchdog can observe communication.
#pragma once
#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

#include "comm/launcher.h"

namespace mcpp {

/// Returns the start timeout in seconds: MEGATRON_CPP_START_TIMEOUT_MINUTES, or 10 minutes. It is not a configuration
/// key because the configuration is read later. Throws BadInput unless it is a positive number. `variable` is
/// std::getenv in main.
double read_startup_timeout(const std::function<const char*(const char*)>& variable);

/// Returns the rank assigned by the launcher, for log messages before MPI is initialized; "" if unknown.
std::string read_rank(const std::function<const char*(const char*)>& variable);

/// Monitors the startup phase during its lifetime. After the timeout, its thread writes the current phase to standard
/// error and exits with ExitCode::PeerLost, so that launchers terminate the other ranks. Without this timeout, MPI
/// would wait silently and indefinitely for a peer that never started, has stopped, has exited or runs as a different
/// user. Time during which this process is suspended does not count.
class StartupTimeout {
 public:
  /// `launcher` and `rank` describe this process in messages.
  StartupTimeout(double seconds, Launcher launcher, std::string rank);
  ~StartupTimeout();
  StartupTimeout(const StartupTimeout&) = delete;
  StartupTimeout& operator=(const StartupTimeout&) = delete;

  /// Sets the startup phase, which the message names. `phase` must have static lifetime.
  void enter(const char* phase) { phase_ = phase; }

 private:
  void watch();
  [[noreturn]] void exit_process() const;

  const double limit_;
  const Launcher launcher_;
  const std::string rank_;
  std::atomic<const char*> phase_ = "MPI_Init";
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_finished_ = false;
  std::thread thread_;  // last member: uses all of the above
};

}  // namespace mcpp
