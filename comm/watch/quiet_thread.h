// Threads that look after a rank beside its work.
#pragma once
#include <pthread.h>
#include <unistd.h>

#include <csignal>
#include <string>
#include <thread>

namespace mcpp {

/// Starts a thread that takes no signals: they are for those that the program meant to take them.
template <class F>
std::thread start_quiet_thread(F f) {
  sigset_t all, before;
  sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread thread(std::move(f));
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return thread;
}

/// To standard error, in one piece, so that ranks do not write into one another's lines.
inline void write_error(const std::string& text) {
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, text.data(), text.size());
}

}  // namespace mcpp
