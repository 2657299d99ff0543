#include "comm/watchdog/watchdog.h"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>

#include "base/check.h"
#include "base/strings.h"
#include "comm/watchdog/background_thread.h"

namespace mcpp {
namespace {

using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;

/// Time for the other ranks to write their reports and to show that they are alive.
constexpr Seconds kReportGracePeriod{2.5};
/// Time for the launcher to end all ranks before each rank ends itself.
constexpr Seconds kAbortTime{5};
constexpr std::size_t kOperationsShown = 8;

/// Polling interval: often enough for the limit, at most once a second to cost nothing.
Seconds pause_for(double limit) {
  return Seconds(std::clamp(limit / 20, 0.02, 1.0));
}

std::string machine_name() {
  char name[256] = {};
  return ::gethostname(name, sizeof(name) - 1) == 0 ? name : "this machine";
}

std::string joined(const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank" : "ranks";
  for (const int rank : ranks) text += str(" ", rank);
  return text;
}

}  // namespace

std::string machine_report(const std::vector<StatusBoard::Status>& before,
                           const std::vector<StatusBoard::Status>& after) {
  std::string text;
  std::vector<int> silent, absent;
  for (std::size_t i = 0; i < after.size(); ++i) {
    const StatusBoard::Status& now = after[i];
    const bool is_alive = now.heartbeats != before[i].heartbeats;
    if (!is_alive) silent.push_back(now.rank);
    if (is_alive && !now.waits) absent.push_back(now.rank);
    text += str("\n  rank ", now.rank,
                is_alive ? " " : " does not answer (stopped, dead, or kept from running); last: ", now.text,
                " [process ", now.process, "]");
  }
  if (!silent.empty()) text += str("\n  => did not come because it does not run: ", joined(silent));
  if (!absent.empty()) text += str("\n  => did not come because it is busy elsewhere: ", joined(absent));
  if (silent.empty() && absent.empty())
    text +=
        "\n  => all ranks here wait: see the lines of the other machines, or whether ranks wait for different things";
  return text;
}

Watchdog::Watchdog(FlightRecorder& recorder, StatusBoard& board, std::function<void()> abort_world)
    : recorder_(recorder), board_(board), abort_world_(std::move(abort_world)) {
  watcher_ = start_background_thread([this] { watch(); });
  poller_ = start_background_thread([this] { poll_device(); });
}

Watchdog::~Watchdog() {
  {
    const std::lock_guard lock(mutex_);
    is_stopping_ = true;
  }
  changed_.notify_all();
  watcher_.join();
  poller_.join();
  board_.show("has ended", false);
}

bool Watchdog::sleep(double seconds) {
  std::unique_lock lock(mutex_);
  return !changed_.wait_for(lock, Seconds(seconds), [this] { return is_stopping_; });
}

void Watchdog::watch() {
  Clock::time_point last = Clock::now();
  for (Seconds pause{0}; sleep(pause.count()); pause = pause_for(detector_.limit())) {
    const Clock::time_point now = Clock::now();
    // Time during which the process was suspended must not count as a hang.
    const Seconds awake = std::min(Seconds(now - last), 3 * pause);
    last = now;
    const FlightSnapshot flight = recorder_.snapshot();
    const auto reason = detector_.check(flight, awake.count());
    if (reason) end_run(flight, *reason);
    show(flight);
  }
}

/// Runs in a separate thread, because a driver call may block.
void Watchdog::poll_device() {
  while (sleep(1)) recorder_.poll();
}

void Watchdog::show(const FlightSnapshot& flight) {
  const OperationRecord* wait = detector_.longest_wait(flight);
  const std::string activity = str(enum_name(flight.activity), ", iteration ", flight.iteration);
  board_.show(wait ? str("waits since ", human_seconds(detector_.waited(*wait)), " for ", wait->to_string(), "; ",
                         enum_name(flight.activity))
                   : activity,
              wait != nullptr);
}

void Watchdog::end_run(const FlightSnapshot& flight, const std::string& reason) {
  show(flight);
  const int rank = board_.rank();
  std::string text = str("[rank ", rank, "] megatron_cpp: error: ", reason, " (limit ",
                         human_seconds(detector_.limit()), "; ", enum_name(flight.activity), ")");
  std::size_t shown = 0;
  for (const OperationRecord& open : flight.open)
    if (shown++ < kOperationsShown) text += str("\n[rank ", rank, "]   open: ", open.to_string());
  for (const OperationRecord& done : recorder_.last_done(kOperationsShown))
    text += str("\n[rank ", rank, "]   done: ", done.to_string());
  write_error(text + "\n");

  const std::vector<StatusBoard::Status> before = board_.read();
  for (const Clock::time_point end = Clock::now() + std::chrono::duration_cast<Clock::duration>(kReportGracePeriod);
       Clock::now() < end;) {
    show(flight);
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  show(flight);
  if (board_.claim()) {
    write_error(str("megatron_cpp: the ranks of ", machine_name(), ":", machine_report(before, board_.read()),
                    "\n  all are ended with exit code ", static_cast<int>(ExitCode::PeerLost),
                    "; parallel.distributed_timeout_minutes and parallel.step_timeout_minutes say how long ranks may "
                    "wait\n"));
  }
  std::thread(abort_world_).detach();
  std::this_thread::sleep_for(kAbortTime);
  ::_exit(static_cast<int>(ExitCode::PeerLost));
}

}  // namespace mcpp
