#include "parallel/pp/simulate.h"

#include <algorithm>
#include <deque>
#include <limits>
#include <optional>

#include "base/check.h"

namespace mcpp {
namespace {

using enum ActionKind;

struct Message {
  Action sent;
  double arrival;
};

/// Messages in sending order. Channels of most pairs of ranks stay empty.
struct Channel {
  std::vector<Message> messages;
  std::size_t received = 0;

  bool empty() const { return received == messages.size(); }
  const Message& front() const { return messages[received]; }
};

class Simulation {
 public:
  /// `costs` has one entry per stage, or a single entry for all stages.
  Simulation(const Schedule& schedule, std::span<const ScheduleCosts> costs)
      : schedule_(schedule),
        costs_(costs),
        stages_(schedule_.stages()),
        is_done_(kKinds * stages_ * schedule_.microbatches, false),
        next_weight_grad_(stages_, 0),
        reduced_(stages_, false),
        channels_(2 * schedule_.ranks * schedule_.ranks),
        step_(schedule_.ranks, 0),
        clock_(schedule_.ranks, 0),
        in_flight_(schedule_.ranks, 0) {
    timeline_.per_rank.resize(schedule_.ranks);
    timeline_.busy.assign(schedule_.ranks, 0);
    timeline_.idle.assign(schedule_.ranks, 0);
    timeline_.peak_in_flight.assign(schedule_.ranks, 0);
    for (int rank = 0; rank < schedule_.ranks; ++rank) timeline_.per_rank[rank].reserve(actions(rank).size());
    for (int stage = 0; stage < stages_; ++stage) ranks_.push_back(schedule_.rank_of(stage));
  }

  Timeline run() {
    for (bool progress = true; progress;) {
      progress = false;
      for (int rank = 0; rank < schedule_.ranks; ++rank)
        while (step_[rank] < actions(rank).size() && take_step(rank)) progress = true;
    }
    check_end();
    measure();
    return std::move(timeline_);
  }

 private:
  static constexpr int kKinds = 8;  // kinds with a microbatch

  int rank_of(int stage) const { return ranks_[stage]; }
  const std::vector<Action>& actions(int rank) const { return schedule_.per_rank[rank]; }
  const ScheduleCosts& costs(int stage) const { return costs_.size() == 1 ? costs_[0] : costs_[stage]; }
  std::size_t index(ActionKind kind, int stage, int microbatch) const {
    return (static_cast<std::size_t>(kind) * stages_ + stage) * schedule_.microbatches + microbatch;
  }
  bool is_done(ActionKind kind, int stage, int microbatch) const { return is_done_[index(kind, stage, microbatch)]; }
  bool has_input_grad(int stage, int microbatch) const {
    return is_done(Backward, stage, microbatch) || is_done(BackwardInput, stage, microbatch);
  }
  Channel& channel(int from, int to, bool is_forward) {
    return channels_[2 * (from * schedule_.ranks + to) + is_forward];
  }

  [[noreturn]] void reject(int rank, const std::string& reason) const {
    const bool is_at_end = step_[rank] >= actions(rank).size();
    fail(ExitCode::Internal, "pipeline schedule, rank ", rank, ", step ", step_[rank], " (",
         is_at_end ? "end" : describe(actions(rank)[step_[rank]]), "): ", reason);
  }
  void require(bool condition, int rank, const char* reason) const {
    if (!condition) reject(rank, reason);
  }

  /// Executes the next action of the rank. Returns false if it must wait for a message.
  bool take_step(int rank) {
    const Action& a = actions(rank)[step_[rank]];
    require(a.stage >= 0 && a.stage < stages_ && rank_of(a.stage) == rank, rank, "the stage is not on this rank");
    require(!schedule_.forward_only || a.kind == Forward || a.kind == SendForward || a.kind == RecvForward, rank,
            "the schedule has forwards only");
    if (a.kind == ReduceGrad) {
      reduce_grad(rank, a);
    } else {
      require(a.microbatch >= 0 && a.microbatch < schedule_.microbatches, rank, "the microbatch does not exist");
      require(!is_done(a.kind, a.stage, a.microbatch), rank, "it is executed twice");
      if (!act(rank, a)) return false;
      is_done_[index(a.kind, a.stage, a.microbatch)] = true;
    }
    ++step_[rank];
    return true;
  }

  bool act(int rank, const Action& a) {
    switch (a.kind) {
      case RecvForward:
      case RecvBackward:
        return receive(rank, a);
      case SendForward:
      case SendBackward:
        send(rank, a);
        break;
      case Forward:
        forward(rank, a);
        break;
      default:
        backward(rank, a);
    }
    return true;
  }

  bool receive(int rank, const Action& a) {
    const bool is_forward = a.kind == RecvForward;
    const int peer_stage = a.stage + (is_forward ? -1 : 1);
    require(peer_stage >= 0 && peer_stage < stages_, rank, "no stage precedes it in this direction");
    Channel& messages = channel(rank_of(peer_stage), rank, is_forward);
    if (messages.empty()) return false;
    const Action expected{is_forward ? SendForward : SendBackward, peer_stage, a.microbatch};
    if (messages.front().sent != expected)
      reject(rank, str("the next message is the ", describe(messages.front().sent)));
    const double arrival = messages.front().arrival;
    ++messages.received;
    record(rank, a, std::max(0.0, arrival - clock_[rank]), /*is_compute=*/false);
    return true;
  }

  void send(int rank, const Action& a) {
    const bool is_forward = a.kind == SendForward;
    const int peer_stage = a.stage + (is_forward ? 1 : -1);
    require(peer_stage >= 0 && peer_stage < stages_, rank, "no stage follows it in this direction");
    require(is_forward ? is_done(Forward, a.stage, a.microbatch) : has_input_grad(a.stage, a.microbatch), rank,
            "it is sent before it is computed");
    channel(rank, rank_of(peer_stage), is_forward)
        .messages.push_back({a, clock_[rank] + costs(std::min(a.stage, peer_stage)).message});
    record(rank, a, 0, /*is_compute=*/false);
  }

  void forward(int rank, const Action& a) {
    const int previous_stage = a.stage - 1;
    if (previous_stage >= 0) {
      const bool is_available = rank_of(previous_stage) == rank ? is_done(Forward, previous_stage, a.microbatch)
                                                                : is_done(RecvForward, a.stage, a.microbatch);
      require(is_available, rank, "its input is missing");
    }
    timeline_.peak_in_flight[rank] = std::max(timeline_.peak_in_flight[rank], ++in_flight_[rank]);
    if (schedule_.forward_only) --in_flight_[rank];  // no backward will use it
    record(rank, a, costs(a.stage).forward);
  }

  void backward(int rank, const Action& a) {
    require(is_done(Forward, a.stage, a.microbatch), rank, "its forward has not been computed");
    if (computes_input_grad(a.kind)) check_output_grad(rank, a);
    if (a.kind == BackwardWeight)
      require(is_done(BackwardInput, a.stage, a.microbatch), rank, "its input gradient has not been computed");
    if (computes_weight_grad(a.kind)) {
      int& next = next_weight_grad_[a.stage];
      require(a.microbatch >= next, rank, "its weight gradient is added twice");
      require(a.microbatch == next, rank, "weight gradients are not added in microbatch order");
      ++next;
      --in_flight_[rank];
    }
    record(rank, a,
           (computes_input_grad(a.kind) ? costs(a.stage).backward_input : 0) +
               (computes_weight_grad(a.kind) ? costs(a.stage).backward_weight : 0));
  }

  void check_output_grad(int rank, const Action& a) const {
    require(!has_input_grad(a.stage, a.microbatch), rank, "its gradient is computed twice");
    const int next_stage = a.stage + 1;
    if (next_stage >= stages_) return;
    const bool is_available = rank_of(next_stage) == rank ? has_input_grad(next_stage, a.microbatch)
                                                          : is_done(RecvBackward, a.stage, a.microbatch);
    require(is_available, rank, "the gradient of its output is missing");
  }

  void reduce_grad(int rank, const Action& a) {
    require(!reduced_[a.stage], rank, "it is executed twice");
    require(next_weight_grad_[a.stage] == schedule_.microbatches, rank, "weight gradients are still missing");
    reduced_[a.stage] = true;
    record(rank, a, costs(a.stage).reduce_grad);
  }

  void record(int rank, const Action& a, double time, bool is_compute = true) {
    const double begin = clock_[rank];
    clock_[rank] += time;
    if (is_compute) timeline_.busy[rank] += time;
    timeline_.per_rank[rank].push_back({a, begin, clock_[rank]});
  }

  void check_end() const {
    for (int rank = 0; rank < schedule_.ranks; ++rank)
      require(step_[rank] == actions(rank).size(), rank, "deadlock: the message is never sent");
    for (int stage = 0; stage < stages_; ++stage) {
      const int rank = rank_of(stage);
      for (int i = 0; i < schedule_.microbatches; ++i)
        if (!is_done(Forward, stage, i) || !(schedule_.forward_only || has_input_grad(stage, i)))
          reject(rank, str("microbatch ", i, " is lost in stage ", stage));
      if (schedule_.forward_only) continue;
      if (next_weight_grad_[stage] != schedule_.microbatches)
        reject(rank, str("weight gradients are missing in stage ", stage));
      if (!reduced_[stage]) reject(rank, str("the gradients of stage ", stage, " are not reduced"));
    }
    for (int k = 0; const Channel& messages : channels_) {
      if (!messages.empty())
        reject(k / 2 % schedule_.ranks, str("never received: the ", describe(messages.front().sent)));
      ++k;
    }
  }

  void measure() {
    for (int rank = 0; rank < schedule_.ranks; ++rank) {
      std::optional<double> first;
      double last = 0;
      for (const TimedAction& timed : timeline_.per_rank[rank]) {
        if (timed.action.kind > BackwardWeight && timed.action.kind != ReduceGrad) continue;
        if (!first) first = timed.begin;
        last = timed.end;
      }
      const double span = last - first.value_or(0);
      timeline_.idle[rank] = std::max(0.0, span - timeline_.busy[rank]);
      if (span > 0) timeline_.bubble = std::max(timeline_.bubble, timeline_.idle[rank] / span);
      timeline_.makespan = std::max(timeline_.makespan, last);
    }
  }

  const Schedule& schedule_;
  const std::span<const ScheduleCosts> costs_;
  const int stages_;
  std::vector<int> ranks_;  // by stage
  Timeline timeline_;
  std::vector<bool> is_done_;          // by index()
  std::vector<int> next_weight_grad_;  // microbatch, by stage
  std::vector<bool> reduced_;          // by stage
  std::vector<Channel> channels_;
  std::vector<std::size_t> step_;
  std::vector<double> clock_;
  std::vector<int> in_flight_;
};

}  // namespace

int Timeline::max_in_flight() const {
  return peak_in_flight.empty() ? 0 : *std::max_element(peak_in_flight.begin(), peak_in_flight.end());
}

Timeline simulate(const Schedule& lowered, const ScheduleCosts& costs) {
  return simulate(lowered, std::span(&costs, 1));
}

Timeline simulate(const Schedule& lowered, std::span<const ScheduleCosts> costs) {
  MCPP_CHECK(costs.size() == 1 || static_cast<int>(costs.size()) == lowered.stages(), "expected one cost per stage");
  MCPP_CHECK(static_cast<int>(lowered.per_rank.size()) == lowered.ranks, "expected one list of actions per rank");
  return Simulation(lowered, costs).run();
}

namespace {

using enum ActionKind;
constexpr double kNever = std::numeric_limits<double>::infinity();

class OversubscribedSimulation {
 public:
  OversubscribedSimulation(const Schedule& schedule, std::span<const ScheduleCosts> costs, double cores)
      : schedule_(schedule),
        costs_(costs),
        cores_(cores),
        ranks_(schedule.ranks),
        channels_(2 * schedule_.ranks * schedule_.ranks) {}

  double run() {
    while (true) {
      while (start_all()) {
      }
      const auto working =
          static_cast<double>(std::ranges::count_if(ranks_, [](const Rank& rank) { return rank.remaining > 0; }));
      const double speed = std::min(1.0, cores_ / std::max(1.0, working));
      const double until = next_event(speed);
      if (until == kNever) break;
      for (Rank& rank : ranks_)
        rank.remaining = time_ + rank.remaining / speed <= until ? 0 : rank.remaining - (until - time_) * speed;
      time_ = until;
    }
    for (int rank = 0; rank < schedule_.ranks; ++rank)
      MCPP_CHECK(ranks_[rank].step == schedule_.per_rank[rank].size(), "the schedule has a deadlock at rank ", rank);
    return time_;
  }

 private:
  struct Rank {
    std::size_t step = 0;
    bool is_started = false;          // the action at `step` has been started
    double remaining = 0;             // seconds of it at full speed
    double awaited_arrival = kNever;  // arrival time of the awaited message
  };

  const ScheduleCosts& costs(int stage) const { return costs_.size() == 1 ? costs_[0] : costs_[stage]; }
  std::deque<double>& channel(int from, int to, bool is_forward) {
    return channels_[2 * (from * schedule_.ranks + to) + is_forward];
  }

  /// Advances ranks without computing. Returns true if any rank advanced.
  bool start_all() {
    bool progress = false;
    for (int rank = 0; rank < schedule_.ranks; ++rank)
      while (ranks_[rank].step < schedule_.per_rank[rank].size() && take_step(rank)) progress = true;
    return progress;
  }

  /// Starts the next action of the rank. Returns false while the rank computes or waits.
  bool take_step(int rank_index) {
    Rank& rank = ranks_[rank_index];
    const Action& a = schedule_.per_rank[rank_index][rank.step];
    if (a.kind == RecvForward || a.kind == RecvBackward) {
      if (!receive(rank, rank_index, a)) return false;
    } else if (a.kind == SendForward || a.kind == SendBackward) {
      const bool is_forward = a.kind == SendForward;
      const int peer_stage = a.stage + (is_forward ? 1 : -1);
      channel(rank_index, schedule_.rank_of(peer_stage), is_forward)
          .push_back(time_ + costs(std::min(a.stage, peer_stage)).message);
    } else {
      if (!rank.is_started) rank.remaining = work(a);
      rank.is_started = true;
      if (rank.remaining > 0) return false;
    }
    rank.is_started = false;
    ++rank.step;
    return true;
  }

  bool receive(Rank& rank, int rank_index, const Action& a) {
    const bool is_forward = a.kind == RecvForward;
    std::deque<double>& messages = channel(schedule_.rank_of(a.stage + (is_forward ? -1 : 1)), rank_index, is_forward);
    rank.awaited_arrival = messages.empty() || messages.front() <= time_ ? kNever : messages.front();
    if (messages.empty() || messages.front() > time_) return false;
    messages.pop_front();
    return true;
  }

  double work(const Action& a) const {
    const ScheduleCosts& c = costs(a.stage);
    if (a.kind == Forward) return c.forward;
    if (a.kind == ReduceGrad) return c.reduce_grad;
    return (computes_input_grad(a.kind) ? c.backward_input : 0) +
           (computes_weight_grad(a.kind) ? c.backward_weight : 0);
  }

  /// Returns the time of the next completed computation or message arrival.
  double next_event(double speed) const {
    double next = kNever;
    for (const Rank& rank : ranks_)
      next = std::min(next, rank.remaining > 0 ? time_ + rank.remaining / speed : rank.awaited_arrival);
    return next;
  }

  const Schedule& schedule_;
  const std::span<const ScheduleCosts> costs_;
  const double cores_;
  std::vector<Rank> ranks_;
  std::vector<std::deque<double>> channels_;
  double time_ = 0;
};

}  // namespace

double oversubscribed_makespan(const Schedule& lowered, std::span<const ScheduleCosts> costs, double cores) {
  return OversubscribedSimulation(lowered, costs, cores).run();
}

}  // namespace mcpp
