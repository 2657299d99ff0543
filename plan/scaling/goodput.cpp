#include "plan/scaling/goodput.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "base/integer_math.h"
#include "base/philox.h"

namespace mcpp {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

/// Stream of random failures: exponential times between them, and the node of each.
class FailureStream {
 public:
  FailureStream(const RecoveryModel& model, u64 seed)
      : nodes_(model.nodes),
        mean_seconds_(model.node_mtbf_seconds / static_cast<double>(model.nodes)),
        key_(philox_key(seed, "failures")) {
    next();
  }

  double time() const { return time_; }
  i64 node() const { return node_; }
  void next() {
    const Philox4 bits = philox4x32(key_, {static_cast<u32>(count_), static_cast<u32>(count_ >> 32), 0, 0});
    ++count_;
    time_ += -std::log(uniform_open(bits[0])) * mean_seconds_;
    node_ = static_cast<i64>(bits[1] % static_cast<u64>(nodes_));
  }

 private:
  i64 nodes_;
  double mean_seconds_;
  u64 key_, count_ = 0;
  double time_ = 0;
  i64 node_ = 0;
};

/// Checkpoints of one tier: the newest one that can be used, and the one being written.
class TierState {
 public:
  explicit TierState(const CheckpointTier& tier) : tier_(tier) {}

  /// Returns the time after a step that ended at `now`, with the wait for a checkpoint that is due.
  double end_step(i64 step, double now) {
    if (tier_.interval == 0 || step % tier_.interval != 0) return now;
    now = std::max(now, is_writing() ? ready_at_ : now);  // at most one is in flight
    update(now);
    writing_ = step;
    ready_at_ = now + tier_.write_seconds;
    return now + tier_.stall_seconds;
  }
  /// Completes the checkpoint in flight if it is ready.
  void update(double now) {
    if (!is_writing() || now < ready_at_) return;
    usable_ = writing_;
    writing_ = -1;
    has_completed_ = true;
  }
  /// Returns true if a checkpoint was completed since the last call.
  bool take_completed() { return std::exchange(has_completed_, false); }
  /// Discards the checkpoint in flight.
  void abort() { writing_ = -1; }
  void discard_usable() { usable_ = -1; }
  /// Moves the state to a time at which `steps` more steps are finished.
  void shift(i64 steps, double seconds) {
    if (usable_ >= 0) usable_ += steps;
    if (is_writing()) writing_ += steps, ready_at_ += seconds;
  }
  /// Returns the step of the newest usable checkpoint; -1: none.
  i64 usable() const { return usable_; }

 private:
  bool is_writing() const { return writing_ >= 0; }

  const CheckpointTier& tier_;
  i64 usable_ = -1, writing_ = -1;
  bool has_completed_ = false;
  double ready_at_ = kNever;
};

/// Parts of the newest checkpoint in memory, by node.
class MemoryCopies {
 public:
  explicit MemoryCopies(const RecoveryModel& model)
      : replicas_(std::min(model.replicas, model.nodes - 1)),
        has_part_(static_cast<std::size_t>(model.nodes)),
        keeps_copies_(static_cast<std::size_t>(model.nodes)) {}

  void write_all() {
    has_part_.assign(has_part_.size(), true);
    keeps_copies_.assign(keeps_copies_.size(), true);
  }
  void lose(i64 node) { has_part_[index(node)] = keeps_copies_[index(node)] = false; }
  /// Returns true, and restores the parts of all nodes, if each has a copy left.
  bool restore() {
    for (i64 node = 0; node < std::ssize(has_part_); ++node)
      if (!is_available(node)) return false;
    has_part_.assign(has_part_.size(), true);
    return true;
  }

 private:
  std::size_t index(i64 node) const { return static_cast<std::size_t>(node) % has_part_.size(); }
  bool is_available(i64 node) const {
    for (i64 copy = 1; copy <= replicas_; ++copy)
      if (keeps_copies_[index(node + copy)]) return true;
    return has_part_[index(node)];
  }

  i64 replicas_;
  std::vector<bool> has_part_, keeps_copies_;
};

/// State of a simulated run.
class SimulatedRun {
 public:
  SimulatedRun(const RecoveryModel& model, u64 seed)
      : model_(model),
        stream_(model, seed),
        disk_(model.disk),
        memory_(model.memory),
        copies_(model),
        cycle_(std::lcm(std::max<i64>(1, model.disk.interval), std::max<i64>(1, model.memory.interval))) {}

  /// Runs until `failures` failures have happened.
  Goodput run(i64 failures) {
    while (result_.failures < failures) {
      if (stream_.time() > now_ + model_.step_seconds) {
        train_step();
        if (step_ % cycle_ == 0) skip_cycles();
      } else {
        fail(failures);
      }
    }
    result_.fraction = now_ > 0 ? static_cast<double>(step_) * model_.step_seconds / now_ : 0;
    result_.lost_steps = lost_steps_ / static_cast<double>(result_.failures);
    return result_;
  }

 private:
  void train_step() {
    ++step_;
    now_ = memory_.end_step(step_, disk_.end_step(step_, now_ + model_.step_seconds));
    update();
  }

  void update() {
    disk_.update(now_);
    memory_.update(now_);
    if (memory_.take_completed()) copies_.write_all();
  }

  /// Skips cycles without failures if the last two took the same time. A cycle has a whole number of intervals of both
  /// tiers.
  void skip_cycles() {
    const double seconds = now_ - cycle_begin_;
    const bool is_steady = std::abs(seconds - cycle_seconds_) <= 1e-9 * seconds;
    const double cycles = is_steady ? std::floor((stream_.time() - now_) / seconds) - 1 : 0;
    if (cycles > 0) {
      const i64 steps = static_cast<i64>(cycles) * cycle_;
      step_ += steps;
      now_ += cycles * seconds;
      disk_.shift(steps, cycles * seconds);
      memory_.shift(steps, cycles * seconds);
    }
    cycle_seconds_ = seconds;
    cycle_begin_ = now_;
  }

  /// Restarts after a failure, and after those that happen during the restart.
  void fail(i64 failures) {
    now_ = std::max(now_, stream_.time());  // a failure while training waited for a checkpoint counts from its end
    update();
    disk_.abort();
    memory_.abort();
    double restarted = now_;
    for (; stream_.time() <= restarted && result_.failures < failures; stream_.next()) {
      copies_.lose(stream_.node());
      ++result_.failures;
      restarted = std::max(now_, stream_.time()) + model_.restart_seconds;
    }
    now_ = restarted;
    const bool is_in_memory = memory_.usable() >= std::max<i64>(0, disk_.usable()) && copies_.restore();
    if (!is_in_memory) memory_.discard_usable();
    const i64 resumed = std::max<i64>(0, is_in_memory ? memory_.usable() : disk_.usable());
    result_.from_memory += is_in_memory;
    lost_steps_ += static_cast<double>(step_ - resumed);
    step_ = resumed;
    cycle_seconds_ = -1;
    cycle_begin_ = now_;
  }

  const RecoveryModel& model_;
  FailureStream stream_;
  TierState disk_, memory_;
  MemoryCopies copies_;
  const i64 cycle_;
  double now_ = 0, lost_steps_ = 0;
  double cycle_begin_ = 0, cycle_seconds_ = -1;
  i64 step_ = 0;  // finished steps that have not been lost
  Goodput result_;
};

}  // namespace

Goodput simulate_goodput(const RecoveryModel& model, i64 failures, u64 seed) {
  return SimulatedRun(model, seed).run(failures);
}

namespace {

constexpr i64 kSimulatedFailures = 400;
constexpr i64 kIntervals[]{1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000};

/// Returns the bytes of a rank's part of a checkpoint in memory: all that it updates.
double part_bytes(const PredictionInput& input) {
  const Layout& layout = input.layout;
  const double shards = layout.zero_stage > 0 ? real(layout.shard_group().ranks) : 1;
  return save_time(input).bytes / real(layout.tp * layout.pp) / shards;
}

}  // namespace

std::vector<GoodputPoint> goodput_by_interval(const PredictionInput& input, double step_seconds,
                                              const Failures& failures) {
  const LinkTiers& links = input.hardware.links;
  const i64 ranks_per_node = std::min(links.ranks.front(), input.layout.world_size());
  const SaveTime save = save_time(input);
  RecoveryModel model{.step_seconds = step_seconds,
                      .nodes = ceil_div(input.layout.world_size(), ranks_per_node),
                      .node_mtbf_seconds = 3600 * failures.mtbf_hours / real(ranks_per_node),
                      .restart_seconds = failures.restart_seconds};
  const double stall = failures.save_seconds > 0 ? failures.save_seconds
                       : save.stall_seconds > 0  ? save.stall_seconds
                                                 : save.seconds;
  model.disk = {.stall_seconds = stall, .write_seconds = std::max(stall, save.seconds)};
  std::vector<GoodputPoint> points;
  for (const i64 interval : kIntervals) {
    model.disk.interval = interval;
    points.push_back({false, interval, interval, stall, simulate_goodput(model, kSimulatedFailures)});
  }
  const double link = 1e9 * input.hardware.host.link_bandwidth, bytes = part_bytes(input);
  if (link == 0 || model.nodes == 1) return points;
  const std::size_t tier = links.ranks.size() > 1 ? 1 : 0;
  const double copy = bytes / link, transfer = bytes / (1e9 * links.bandwidth[tier]);
  model.memory = {.stall_seconds = copy, .write_seconds = copy + transfer};
  for (const i64 interval : kIntervals) {
    model.memory.interval = interval;
    GoodputPoint best{true, interval, 0, copy, {}};
    for (const i64 disk_interval : kIntervals) {
      model.disk.interval = disk_interval;
      const Goodput goodput = simulate_goodput(model, kSimulatedFailures);
      if (goodput.fraction >= best.goodput.fraction) best.disk_interval = disk_interval, best.goodput = goodput;
    }
    points.push_back(best);
  }
  return points;
}

}  // namespace mcpp
