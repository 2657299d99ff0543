#include "comm/watchdog/hang_detector.h"

#include <algorithm>

#include "base/number_format.h"
#include "base/strings.h"

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
    return str("hang: waits since ", human_seconds(waited_.at(longest->id)), " for ", longest->to_string());
  if (flight.activity == Activity::Training && idle_seconds_ > limit_)
    return str("hang: iteration ", flight.iteration, " shows no sign of life since ", human_seconds(idle_seconds_));
  return std::nullopt;
}

double HangDetector::waited(const OperationRecord& operation) const {
  const auto found = waited_.find(operation.id);
  return found == waited_.end() ? 0 : found->second;
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
  if (!flight.follows_step) return flight.limits.longest;
  return std::min(flight.limits.longest, std::max(flight.limits.step, kStepTimeoutFactor * longest_step_));
}

}  // namespace mcpp
