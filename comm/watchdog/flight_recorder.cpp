#include "comm/watchdog/flight_recorder.h"

#include <exception>
#include <utility>

#include "base/strings.h"

namespace mcpp {
namespace {

using State = OperationRecord::State;

/// Longer rank lists are abbreviated in the middle.
constexpr std::size_t kRanksShown = 16;

}  // namespace

std::string GroupName::to_string() const {
  std::string text = str(name, " (ranks");
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    if (ranks.size() > kRanksShown && i == kRanksShown / 2) {
      i = ranks.size() - kRanksShown / 2;
      text += " ...";
    }
    text += str(" ", ranks[i]);
  }
  return text + ")";
}

std::string OperationRecord::to_string() const {
  std::string text = name;
  if (number > 0) text += str(" #", number);
  if (peer >= 0) text += str(std::string_view(name) == "recv" ? " from rank " : " to rank ", peer);
  if (bytes > 0) text += str(" of ", human_bytes(static_cast<double>(bytes)));
  if (group) text += str(" in ", group->to_string());
  return text + (iteration > 0 ? str(", iteration ", iteration) : "");
}

const GroupName& FlightRecorder::add_group(std::string name, std::vector<int> ranks) {
  const std::lock_guard lock(mutex_);
  return groups_.emplace_back(GroupName{.name = std::move(name), .ranks = std::move(ranks)});
}

u64 FlightRecorder::begin(OperationRecord operation) {
  const std::lock_guard lock(mutex_);
  operation.id = ++last_;
  operation.iteration = current_.iteration;
  operation.state = State::Waiting;
  slot(last_) = {.operation = operation, .is_done = nullptr};
  ++current_.events;
  return last_;
}

void FlightRecorder::set_state(u64 id, State state) {
  const std::lock_guard lock(mutex_);
  if (slot(id).operation.id != id) return;  // overwritten by later operations
  slot(id).operation.state = state;
  ++current_.events;
}

void FlightRecorder::set_queued(u64 id, std::function<bool()> is_done) {
  auto shared = std::make_shared<const std::function<bool()>>(std::move(is_done));
  const std::lock_guard lock(mutex_);
  if (slot(id).operation.id != id) return;
  slot(id).operation.state = State::Queued;
  slot(id).is_done = std::move(shared);
  ++current_.events;
}

void FlightRecorder::poll() {
  std::vector<std::pair<u64, std::shared_ptr<const std::function<bool()>>>> queued;
  {
    const std::lock_guard lock(mutex_);
    for (u64 id = oldest(); id <= last_; ++id)
      if (slot(id).is_done) queued.emplace_back(id, slot(id).is_done);
  }
  for (auto& [id, is_done] : queued) {  // without the lock: a driver call may block
    bool done = false;
    std::string error;
    try {
      done = (*is_done)();
    } catch (const std::exception& failure) {
      error = failure.what();
    }
    is_done = nullptr;
    const std::lock_guard lock(mutex_);
    if (!error.empty() && current_.error.empty()) current_.error = error;
    if (!done || slot(id).operation.id != id) continue;
    slot(id).operation.state = State::Done;
    slot(id).is_done = nullptr;
    ++current_.events;
  }
}

void FlightRecorder::enter(Activity activity, i64 iteration) {
  const std::lock_guard lock(mutex_);
  current_.follows_step = activity == Activity::Training && current_.activity == Activity::Training;
  current_.activity = activity;
  current_.iteration = iteration;
  ++current_.events;
}

void FlightRecorder::set_limits(const HangTimeouts& limits) {
  const std::lock_guard lock(mutex_);
  current_.limits = limits;
}

FlightSnapshot FlightRecorder::snapshot() const {
  const std::lock_guard lock(mutex_);
  FlightSnapshot flight = current_;
  for (u64 id = oldest(); id <= last_; ++id)
    if (slot(id).operation.state != State::Done) flight.open.push_back(slot(id).operation);
  return flight;
}

std::vector<OperationRecord> FlightRecorder::last_done(std::size_t count) const {
  const std::lock_guard lock(mutex_);
  std::vector<OperationRecord> records;
  for (u64 id = last_; id >= oldest() && records.size() < count; --id)
    if (slot(id).operation.state == State::Done) records.push_back(slot(id).operation);
  return records;
}

GroupLog::Entry GroupLog::collective(const char* name, i64 bytes) {
  if (!recorder_) return {};
  return {recorder_, recorder_->begin({.group = group_, .name = name, .number = ++collectives_, .bytes = bytes})};
}

GroupLog::Entry GroupLog::message(const char* name, u64& count, int peer, i64 bytes) {
  if (!recorder_) return {};
  const auto index = static_cast<std::size_t>(peer);
  const int rank = index < group_->ranks.size() ? group_->ranks[index] : peer;  // the group rejects an invalid peer
  return {recorder_,
          recorder_->begin({.group = group_, .name = name, .peer = rank, .number = ++count, .bytes = bytes})};
}

}  // namespace mcpp
