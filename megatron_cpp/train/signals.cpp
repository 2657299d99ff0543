#include "megatron_cpp/train/signals.h"

#include <unistd.h>

#include <array>

namespace mcpp {
namespace {

constexpr std::array kSignals{SIGTERM, SIGINT, SIGUSR1};

// A handler can reach nothing but static storage; SignalWatch is its only user.
std::atomic<int> received_signal = 0;
static_assert(std::atomic<int>::is_always_lock_free);

void on_signal(int signal) {
  // Launchers and schedulers send SIGTERM and SIGUSR1 more than once; only an impatient Ctrl-C means it.
  if (received_signal == SIGINT && signal == SIGINT) ::_exit(128 + signal);
  received_signal = signal;
}

void set_handlers(void (*handler)(int)) {
  struct sigaction action {};
  action.sa_handler = handler;
  action.sa_flags = SA_RESTART;
  for (int signal : kSignals) ::sigaction(signal, &action, nullptr);
}

sigset_t signal_set() {
  sigset_t set;
  sigemptyset(&set);
  for (int signal : kSignals) sigaddset(&set, signal);
  return set;
}

}  // namespace

SignalWatch::SignalWatch() {
  received_signal = 0;
  set_handlers(on_signal);  // for threads that were there before
  const sigset_t set = signal_set();
  ::pthread_sigmask(SIG_BLOCK, &set, &mask_before_);
  taker_ = std::thread([this, set] {
    for (int signal = 0; !ends_;) {
      if (::sigwait(&set, &signal) == 0 && !ends_) on_signal(signal);
    }
  });
}

SignalWatch::~SignalWatch() {
  ends_ = true;
  ::pthread_kill(taker_.native_handle(), kSignals[0]);  // wakes it
  taker_.join();
  set_handlers(SIG_DFL);
  ::pthread_sigmask(SIG_SETMASK, &mask_before_, nullptr);
}

int SignalWatch::received() const {
  return received_signal;
}

}  // namespace mcpp
