// Devices that load a kernel lazily finish their queue first. These tests check which schedules complete on such
// devices.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <tuple>

#include "base/check.h"
#include "parallel/pp/schedule.h"
#include "parallel/pp/schedule_kind.h"

namespace mcpp::pp_late_kernels_test {
namespace {

using enum ActionKind;

constexpr bool receives(ActionKind k) {
  return k == RecvForward || k == RecvBackward;
}
constexpr bool sends(ActionKind k) {
  return k == SendForward || k == SendBackward;
}

/// Simulates the ranks of the engine, each a host with its device. The first `loads` computations of each kind load a
/// kernel for each stage: the host continues when the device has finished its queue. A message arrives when both of its
/// sides were queued; until then either side blocks the queue.
class LazyKernelLoading {
 public:
  LazyKernelLoading(const Schedule& schedule, int loads, bool serializes_receives)
      : schedule_(schedule), loads_(loads), one_at_a_time_(serializes_receives), ranks_(schedule.per_rank.size()) {}

  /// Returns true if all ranks complete their actions.
  bool end() {
    for (bool moved = true; moved;) {
      moved = false;
      for (std::size_t r = 0; r < ranks_.size(); ++r) {
        while (step(r)) moved = true;
      }
    }
    bool all = true;
    for (std::size_t r = 0; r < ranks_.size(); ++r) all &= ranks_[r].at == actions(r).size() && is_idle(ranks_[r]);
    return all;
  }

 private:
  struct Message {
    bool sent = false, received = false;  // both sides are queued
    bool is_complete() const { return sent && received; }
  };
  /// Message key: true for an activation, the stage that receives it, and the microbatch.
  using Key = std::tuple<bool, int, int>;
  struct Rank {
    std::size_t at = 0, posted = 0;
    std::vector<Key> queued = {};                             // messages queued on its device
    std::map<std::pair<ActionKind, int>, int> computed = {};  // number of computations by stage
  };

  const std::vector<Action>& actions(std::size_t r) const { return schedule_.per_rank[r]; }
  static Key key_of(const Action& a) {
    const bool is_activation = a.kind == SendForward || a.kind == RecvForward;
    const int taker = a.stage + (a.kind == SendForward ? 1 : a.kind == SendBackward ? -1 : 0);
    return {is_activation, taker, a.microbatch};
  }

  bool is_idle(const Rank& rank) {
    return std::ranges::all_of(rank.queued, [&](const Key& key) { return messages_[key].is_complete(); });
  }

  void post_receives(std::size_t r) {
    Rank& rank = ranks_[r];
    const auto is_in_reach = [&] {
      return rank.posted < actions(r).size() &&
             (rank.posted <= rank.at || (!one_at_a_time_ && !computes(actions(r)[rank.posted].kind)));
    };
    for (; is_in_reach(); ++rank.posted) {
      const Action& a = actions(r)[rank.posted];
      if (!receives(a.kind)) continue;
      messages_[key_of(a)].received = true;
      rank.queued.push_back(key_of(a));
    }
  }

  /// Runs the next action of a rank's host. Returns false while it waits.
  bool step(std::size_t r) {
    Rank& rank = ranks_[r];
    if (rank.at == actions(r).size()) return false;
    post_receives(r);
    const Action& a = actions(r)[rank.at];
    int& computed = rank.computed[{a.kind, a.stage}];
    if (computes(a.kind) && computed < loads_ && !is_idle(rank)) return false;
    ++computed;
    if (receives(a.kind) && one_at_a_time_ && !messages_[key_of(a)].is_complete()) return false;
    if (sends(a.kind)) {
      messages_[key_of(a)].sent = true;
      rank.queued.push_back(key_of(a));
    }
    ++rank.at;
    return true;
  }

  const Schedule& schedule_;
  int loads_;
  bool one_at_a_time_;
  std::vector<Rank> ranks_;
  std::map<Key, Message> messages_;
};

constexpr int kAlways = 1000, kSettingAndAdding = 2;

bool ends(const Schedule& schedule, int loads, bool serializes_receives) {
  const Schedule lowered = lower(schedule);
  return LazyKernelLoading(lowered, loads, serializes_receives).end();
}

/// Calls f(schedule, description) for schedules of every kind.
void for_each_schedule(const std::function<void(const Schedule&, const std::string&)>& f) {
  for (const ScheduleRow& row : kSchedules) {
    for (int ranks = row.min_ranks; ranks <= 6; ++ranks) {
      for (int microbatches = 1; microbatches <= 12; ++microbatches) {
        if (!schedule_conflicts(row.kind, ranks, row.min_chunks, microbatches).empty()) continue;
        f(make_schedule(row.kind, ranks, microbatches, row.min_chunks),
          str(row.name, ", ", ranks, " ranks, ", microbatches, " microbatches"));
      }
    }
  }
}

TEST(LazyKernelLoadingTest, SchedulesCompleteWhenFirstMicrobatchesAreSerialized) {
  for_each_schedule([](const Schedule& schedule, const std::string& what) {
    for (const Schedule& passes : {schedule, forward_schedule(schedule)})
      EXPECT_TRUE(ends(serialize_first_microbatches(passes, kSettingAndAdding), kSettingAndAdding,
                       /*serializes_receives=*/true))
          << what;
  });
}

TEST(LazyKernelLoadingTest, RanksThatWaitForEachOtherDeadlock) {
  EXPECT_FALSE(ends(one_f_one_b(2, 4), kSettingAndAdding, /*serializes_receives=*/false))
      << "a gradient is awaited ahead";
  EXPECT_FALSE(ends(zb_v(2, 4), kSettingAndAdding, /*serializes_receives=*/true))
      << "both have sent what the other does not take yet";
}

/// If each rank has one stage, messages have one direction and no rank waits for a reply, as in evaluate and generate.
TEST(LazyKernelLoadingTest, ForwardOnlySchedulesCompleteWithPostedReceives) {
  for (int ranks = 1; ranks <= 6; ++ranks) {
    for (int microbatches = 1; microbatches <= 12; ++microbatches)
      EXPECT_TRUE(ends(forward_schedule(gpipe(ranks, microbatches)), kAlways, /*serializes_receives=*/false))
          << ranks << " ranks, " << microbatches << " microbatches";
  }
}

}  // namespace
}  // namespace mcpp::pp_late_kernels_test
