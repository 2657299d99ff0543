#include "comm/watchdog/watchdog.h"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>

#include "base/check.h"
#include "base/machine.h"
#include "base/number_format.h"
#include "base/strings.h"
#include "comm/watchdog/background_thread.h"

namespace mcpp {
namespace {

using State = OperationRecord::State;

/// Limit as a multiple of the longest step so far: waiting ranks are delayed by the slowest one.
constexpr double kStepTimeoutFactor = 5;

bool is_waited_for(const OperationRecord& operation) {
  return operation.state == State::Waiting || operation.state == State::Queued;
}

}  // namespace

std::optional<std::string> HangDetector::check(const FlightSnapshot& flight, double seconds) {
  if (!flight.error.empty()) return str("communication failed: ", flight.error);
  follow_steps(flight, seconds);
  limit_ = limit_of(flight);
  std::map<u64, double> waited;
  for (const OperationRecord& operation : flight.open) {
    if (!is_waited_for(operation)) continue;
    const auto before = waited_.find(operation.id);
    waited[operation.id] = before == waited_.end() ? 0 : before->second + seconds;
  }
  waited_ = std::move(waited);
  idle_seconds_ = flight.events == events_ ? idle_seconds_ + seconds : 0;
  events_ = flight.events;

  const OperationRecord* longest = longest_wait(flight);
  if (longest && waited_.at(longest->id) > limit_)
    return str("hang: has waited ", human_seconds(waited_.at(longest->id)), " for ", longest->to_string());
  if (flight.activity == Activity::Training && idle_seconds_ > limit_)
    return str("hang: iteration ", flight.iteration, " has shown no activity for ", human_seconds(idle_seconds_));
  return std::nullopt;
}

double HangDetector::waited(const OperationRecord& operation) const {
  const auto it = waited_.find(operation.id);
  return it == waited_.end() ? 0 : it->second;
}

const OperationRecord* HangDetector::longest_wait(const FlightSnapshot& flight) const {
  const OperationRecord* longest = nullptr;
  for (const OperationRecord& operation : flight.open)
    if (is_waited_for(operation) && (!longest || waited(operation) > waited(*longest))) longest = &operation;
  return longest;
}

void HangDetector::follow_steps(const FlightSnapshot& flight, double seconds) {
  const bool was_training = activity_ == Activity::Training, is_training = flight.activity == Activity::Training;
  if (was_training) seconds_in_step_ += seconds;
  const bool is_same = was_training && is_training && flight.iteration == iteration_;
  if (!is_same) {
    if (was_training) longest_step_ = std::max(longest_step_, seconds_in_step_);
    seconds_in_step_ = 0;
  }
  activity_ = flight.activity;
  iteration_ = flight.iteration;
}

double HangDetector::limit_of(const FlightSnapshot& flight) const {
  if (!flight.follows_step) return flight.limits.distributed;
  return std::min(flight.limits.distributed, std::max(flight.limits.step, kStepTimeoutFactor * longest_step_));
}

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

std::string format_ranks(const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank" : "ranks";
  for (const int rank : ranks) text += str(" ", rank);
  return text;
}

}  // namespace

std::string node_report(const std::vector<StatusBoard::Status>& before, const std::vector<StatusBoard::Status>& after) {
  std::string text;
  std::vector<int> silent_ranks, missing_ranks;
  for (std::size_t i = 0; i < after.size(); ++i) {
    const StatusBoard::Status& now = after[i];
    const bool is_alive = now.heartbeats != before[i].heartbeats;
    if (!is_alive) silent_ranks.push_back(now.rank);
    if (is_alive && !now.waits) missing_ranks.push_back(now.rank);
    text += str("\n  rank ", now.rank,
                is_alive ? " " : " does not answer (stopped, dead, or kept from running); last: ", now.text,
                " [process ", now.process, "]");
  }
  if (!silent_ranks.empty()) text += str("\n  => missing because not running: ", format_ranks(silent_ranks));
  if (!missing_ranks.empty()) text += str("\n  => missing because still computing: ", format_ranks(missing_ranks));
  if (silent_ranks.empty() && missing_ranks.empty())
    text +=
        "\n  => all ranks of this node wait: see the reports of the other nodes, or check whether ranks wait for "
        "different operations";
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
  board_.show(wait ? str("has waited ", human_seconds(detector_.waited(*wait)), " for ", wait->to_string(), "; ",
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
    write_error(str("megatron_cpp: the ranks of ", host_name(), ":", node_report(before, board_.read()),
                    "\n  all of them exit with code ", static_cast<int>(ExitCode::PeerLost),
                    "; parallel.distributed_timeout_minutes and parallel.step_timeout_minutes limit how long ranks may "
                    "wait\n"));
  }
  std::thread(abort_world_).detach();
  std::this_thread::sleep_for(kAbortTime);
  ::_exit(static_cast<int>(ExitCode::PeerLost));
}

}  // namespace mcpp
