// A limit on the start of the ranks, when nothing communicates yet that a Watchdog could look at.
#pragma once
#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

#include "comm/launcher.h"

namespace mcpp {

/// What the user allows it to take, in seconds: MEGATRON_CPP_START_TIMEOUT_MINUTES, or 10 minutes. No key of the
/// configuration, which is read later. BadInput when it is no positive number. `variable` is std::getenv in main.
double read_start_limit(const std::function<const char*(const char*)>& variable);

/// The rank that the launcher gave this process, as messages name it before MPI tells; "" when it does not say.
std::string read_rank(const std::function<const char*(const char*)>& variable);

/// While it lives, a thread counts the seconds: past the limit it writes to standard error what is waited for and ends
/// the process with ExitCode::PeerLost, upon which launchers end the other ranks. A peer that never started, has
/// stopped, has ended or runs as another user leaves MPI waiting for ever, without a word. Time in which the process
/// itself is stopped does not count.
class StartLimit {
 public:
  /// `launcher` and `rank`: of this process, for the message.
  StartLimit(double seconds, Launcher launcher, std::string rank);
  ~StartLimit();
  StartLimit(const StartLimit&) = delete;
  StartLimit& operator=(const StartLimit&) = delete;

  /// What is waited for from now on: text that stays where it is.
  void enter(const char* what) { what_ = what; }

 private:
  void watch();
  [[noreturn]] void end() const;

  const double limit_;
  const Launcher launcher_;
  const std::string rank_;
  std::atomic<const char*> what_ = "MPI_Init";
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_over_ = false;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace mcpp
