#include "parallel/pp/oversubscription.h"

#include <algorithm>
#include <deque>
#include <limits>

#include "base/check.h"

namespace mcpp {
namespace {

using enum ActionKind;
constexpr double kNever = std::numeric_limits<double>::infinity();

class OversubscribedSimulation {
 public:
  OversubscribedSimulation(const Schedule& schedule, std::span<const ScheduleCosts> costs, double at_once)
      : s_(schedule), costs_(costs), at_once_(at_once), ranks_(schedule.ranks), channels_(2 * s_.ranks * s_.ranks) {}

  double run() {
    while (true) {
      while (start_all()) {
      }
      const auto working =
          static_cast<double>(std::ranges::count_if(ranks_, [](const Rank& rank) { return rank.left > 0; }));
      const double speed = std::min(1.0, at_once_ / std::max(1.0, working));
      const double until = next_event(speed);
      if (until == kNever) break;
      for (Rank& rank : ranks_) rank.left = now_ + rank.left / speed <= until ? 0 : rank.left - (until - now_) * speed;
      now_ = until;
    }
    for (int rank = 0; rank < s_.ranks; ++rank)
      MCPP_CHECK(ranks_[rank].step == s_.per_rank[rank].size(), "the schedule has a deadlock at rank ", rank);
    return now_;
  }

 private:
  struct Rank {
    std::size_t step = 0;
    bool is_started = false;  // of the action at `step`
    double left = 0;          // its remaining seconds at full speed
    double awaits = kNever;   // arrival time of the awaited message
  };

  const ScheduleCosts& costs(int stage) const { return costs_.size() == 1 ? costs_[0] : costs_[stage]; }
  std::deque<double>& channel(int from, int to, bool forward) {
    return channels_[2 * (from * s_.ranks + to) + forward];
  }

  /// Advances ranks without computing. Returns true if any rank advanced.
  bool start_all() {
    bool progress = false;
    for (int rank = 0; rank < s_.ranks; ++rank)
      while (ranks_[rank].step < s_.per_rank[rank].size() && take_step(rank)) progress = true;
    return progress;
  }

  /// Starts the next action of the rank. Returns false while the rank computes or waits.
  bool take_step(int number) {
    Rank& rank = ranks_[number];
    const Action& a = s_.per_rank[number][rank.step];
    if (a.kind == RecvForward || a.kind == RecvBackward) {
      if (!receive(rank, number, a)) return false;
    } else if (a.kind == SendForward || a.kind == SendBackward) {
      const bool forward = a.kind == SendForward;
      channel(number, s_.rank_of(a.stage + (forward ? 1 : -1)), forward).push_back(now_ + costs(a.stage).message);
    } else {
      if (!rank.is_started) rank.left = work(a);
      rank.is_started = true;
      if (rank.left > 0) return false;
    }
    rank.is_started = false;
    ++rank.step;
    return true;
  }

  bool receive(Rank& rank, int number, const Action& a) {
    const bool forward = a.kind == RecvForward;
    std::deque<double>& messages = channel(s_.rank_of(a.stage + (forward ? -1 : 1)), number, forward);
    rank.awaits = messages.empty() || messages.front() <= now_ ? kNever : messages.front();
    if (messages.empty() || messages.front() > now_) return false;
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
    for (const Rank& rank : ranks_) next = std::min(next, rank.left > 0 ? now_ + rank.left / speed : rank.awaits);
    return next;
  }

  const Schedule& s_;
  const std::span<const ScheduleCosts> costs_;
  const double at_once_;
  std::vector<Rank> ranks_;
  std::vector<std::deque<double>> channels_;
  double now_ = 0;
};

}  // namespace

double oversubscribed_makespan(const Schedule& lowered, std::span<const ScheduleCosts> costs, double at_once) {
  return OversubscribedSimulation(lowered, costs, at_once).run();
}

}  // namespace mcpp
