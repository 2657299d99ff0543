#include "megatron_cpp/signals.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <array>

#include "base/check.h"

namespace mcpp {
namespace {

constexpr std::array kSignals{SIGTERM, SIGINT, SIGUSR1};

// A handler can reach nothing but static storage; SignalWatch is its only user.
volatile std::sig_atomic_t received_signal = 0;

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

SignalWatch::SignalWatch() : end_(::eventfd(0, EFD_CLOEXEC)) {
  MCPP_CHECK(end_ >= 0, "no event for the thread that takes signals");
  received_signal = 0;
  set_handlers(on_signal);
  const sigset_t set = signal_set();
  ::pthread_sigmask(SIG_BLOCK, &set, &mask_before_);
  taker_ = std::thread([set, end = end_] {
    ::pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
    eventfd_t value = 0;
    while (::eventfd_read(end, &value) != 0) {
    }
  });
}

SignalWatch::~SignalWatch() {
  ::eventfd_write(end_, 1);
  taker_.join();
  ::close(end_);
  set_handlers(SIG_DFL);
  ::pthread_sigmask(SIG_SETMASK, &mask_before_, nullptr);
}

int SignalWatch::received() const {
  return received_signal;
}

}  // namespace mcpp
