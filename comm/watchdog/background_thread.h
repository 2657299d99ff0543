// Helpers for background threads that monitor a rank.
#pragma once
#include <pthread.h>
#include <unistd.h>

#include <csignal>
#include <string>
#include <thread>

namespace mcpp {

/// Starts a thread with all signals blocked, so that they are delivered to the program's own threads.
template <class F>
std::thread start_background_thread(F f) {
  sigset_t all, before;
  sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread thread(std::move(f));
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return thread;
}

/// Writes to standard error in one call, so that lines of different ranks are not interleaved.
inline void write_error(const std::string& text) {
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, text.data(), text.size());
}

}  // namespace mcpp
