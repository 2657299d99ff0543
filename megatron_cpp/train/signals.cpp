#include "megatron_cpp/train/signals.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <utility>

#include "base/strings.h"

namespace mcpp {
namespace {

constexpr std::array kSignals{SIGTERM, SIGINT, SIGUSR1};

// A signal handler can access static storage only. Used by SignalWatch only.
std::atomic<pthread_t> signal_thread;
static_assert(std::atomic<pthread_t>::is_always_lock_free);

/// Signal handler: forwards signals, which earlier threads do not block, to the signal thread.
void forward_signal(int signal) {
  ::pthread_kill(signal_thread, signal);
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

SignalWatch::SignalWatch(StatusBoard* board, std::function<void(int signal)> on_signal)
    : board_(board), on_signal_(std::move(on_signal)) {
  const sigset_t set = signal_set();
  ::pthread_sigmask(SIG_BLOCK, &set, &mask_before_);
  thread_ = std::thread([this, set] {
    for (int signal = 0; !should_end_;) {
      if (::sigwait(&set, &signal) == 0 && !should_end_) handle(signal);
    }
  });
  signal_thread = thread_.native_handle();
  set_handlers(forward_signal);
}

SignalWatch::~SignalWatch() {
  set_handlers(SIG_IGN);  // ignores later signals
  should_end_ = true;
  ::pthread_kill(thread_.native_handle(), kSignals[0]);  // wakes the thread
  thread_.join();
  set_handlers(SIG_DFL);
  ::pthread_sigmask(SIG_SETMASK, &mask_before_, nullptr);
}

void SignalWatch::handle(int signal) {
  // Launchers and schedulers send SIGTERM and SIGUSR1 repeatedly; only a second Ctrl-C ends the process.
  if (signal == SIGINT && ++interrupts_ == 2) ::_exit(128 + signal);
  int none = 0;
  if (!received_.compare_exchange_strong(none, signal)) return;
  const bool is_first = !board_ || board_->record_signal(signal);
  if (is_first && on_signal_) on_signal_(signal);
}

int SignalWatch::received() const {
  const int local = received_;
  return local != 0 || !board_ ? local : board_->recorded_signal();
}

LongStep::Reports LongStep::reports_at(double seconds, double share, i64 microbatches) {
  Reports reports;
  if (share <= 0) return reports;
  const i64 current = std::min(microbatches, 1 + static_cast<i64>(share * static_cast<double>(microbatches)));
  const std::string position = str("microbatch ", current, " of ", microbatches),
                    left = human_seconds(seconds * (1 - share) / share) + " left";
  if (seconds - last_live_ >= kLivePause) {
    reports.live = str(position, ", ", left);
    last_live_ = seconds;
  }
  if (seconds - last_log_ >= kLogPause) {
    reports.log = str(position, " after ", human_seconds(seconds), ", ", left);
    last_log_ = seconds;
  }
  return reports;
}

void StepProgress::begin(std::string name) {
  name_ = std::move(name);
  start_ = steady_seconds();
  step_ = {};
}

void StepProgress::on_pass_finished(i64 done, i64 all, i64 microbatches) {
  const LongStep::Reports reports =
      step_.reports_at(steady_seconds() - start_, static_cast<double>(done) / static_cast<double>(all), microbatches);
  if (reports.log) log_.info(str(name_, ": ", *reports.log));
  if (reports.live && is_live_) log_.progress(str(name_, ": ", *reports.live));
}

}  // namespace mcpp
