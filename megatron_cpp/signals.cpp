#include "megatron_cpp/signals.h"

#include <unistd.h>

#include <array>
#include <csignal>

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

}  // namespace

SignalWatch::SignalWatch() {
  received_signal = 0;
  set_handlers(on_signal);
}

SignalWatch::~SignalWatch() {
  set_handlers(SIG_DFL);
}

int SignalWatch::received() const {
  return received_signal;
}

}  // namespace mcpp
