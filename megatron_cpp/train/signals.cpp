#include "megatron_cpp/train/signals.h"

#include <unistd.h>

#include <array>
#include <utility>

namespace mcpp {
namespace {

constexpr std::array kSignals{SIGTERM, SIGINT, SIGUSR1};

// A signal handler can access static storage only. Used by SignalWatch alone.
std::atomic<pthread_t> taker_thread;
static_assert(std::atomic<pthread_t>::is_always_lock_free);

/// Signal handler: forwards signals of threads that existed before to the signal thread.
void hand_on(int signal) {
  ::pthread_kill(taker_thread, signal);
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

SignalWatch::SignalWatch(StatusBoard* board, std::function<void(int signal)> say)
    : board_(board), say_(std::move(say)) {
  const sigset_t set = signal_set();
  ::pthread_sigmask(SIG_BLOCK, &set, &mask_before_);
  taker_ = std::thread([this, set] {
    for (int signal = 0; !ends_;) {
      if (::sigwait(&set, &signal) == 0 && !ends_) take(signal);
    }
  });
  taker_thread = taker_.native_handle();
  set_handlers(hand_on);
}

SignalWatch::~SignalWatch() {
  set_handlers(SIG_IGN);  // ignores later signals
  ends_ = true;
  ::pthread_kill(taker_.native_handle(), kSignals[0]);  // wakes the thread
  taker_.join();
  set_handlers(SIG_DFL);
  ::pthread_sigmask(SIG_SETMASK, &mask_before_, nullptr);
}

void SignalWatch::take(int signal) {
  // Launchers and schedulers send SIGTERM and SIGUSR1 repeatedly; only a second Ctrl-C ends the process.
  if (signal == SIGINT && ++interrupts_ == 2) ::_exit(128 + signal);
  int none = 0;
  if (!received_.compare_exchange_strong(none, signal)) return;
  const bool is_first = !board_ || board_->record_signal(signal);
  if (is_first && say_) say_(signal);
}

int SignalWatch::received() const {
  const int own = received_;
  return own != 0 || !board_ ? own : board_->recorded_signal();
}

}  // namespace mcpp
