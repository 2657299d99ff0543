#include "parallel/pp/schedule.h"

#include <algorithm>
#include <array>
#include <deque>
#include <iterator>
#include <span>
#include <tuple>

#include "base/check.h"
#include "parallel/pp/schedule_kind.h"

namespace mcpp {
namespace {

Schedule empty_schedule(ScheduleKind kind, int ranks, int microbatches, int chunks = 1) {
  const std::vector<std::string> conflicts = schedule_conflicts(kind, ranks, chunks, microbatches);
  check_input(conflicts.empty(), join(conflicts, "\n"));
  return {{ranks, chunks, row_of(kind).placement}, microbatches, std::vector<std::vector<Action>>(ranks)};
}

/// Writer of one rank's action list. Every kind of work processes the microbatches of a chunk in ascending order, so
/// only the kind and the chunk are passed.
class RankWriter {
 public:
  RankWriter(Schedule& schedule, int rank) : schedule_(schedule), rank_(rank), next_(schedule.chunks_per_rank) {}

  void forward(int chunk = 0) { add(ActionKind::Forward, chunk, next_[chunk].forward++); }
  void backward(int chunk = 0) {
    ++next_[chunk].weight;
    add(ActionKind::Backward, chunk, next_[chunk].backward++);
  }
  void backward_input(int chunk = 0) { add(ActionKind::BackwardInput, chunk, next_[chunk].backward++); }
  void backward_weight(int chunk = 0) { add(ActionKind::BackwardWeight, chunk, next_[chunk].weight++); }

  int forwards(int chunk = 0) const { return next_[chunk].forward; }
  int backwards(int chunk = 0) const { return next_[chunk].backward; }
  int weights(int chunk = 0) const { return next_[chunk].weight; }

 private:
  struct Next {
    int forward = 0, backward = 0, weight = 0;
  };
  void add(ActionKind kind, int chunk, int microbatch) {
    schedule_.per_rank[rank_].push_back({kind, schedule_.stage_of(rank_, chunk), microbatch});
  }

  Schedule& schedule_;
  int rank_;
  std::vector<Next> next_;  // next microbatch, by chunk
};

/// Removes microbatches from `microbatches` on. The remaining actions keep their order, so the schedule stays valid.
void shorten(Schedule& schedule, int microbatches) {
  schedule.microbatches = microbatches;
  for (auto& actions : schedule.per_rank)
    std::erase_if(actions, [&](const Action& action) { return action.microbatch >= microbatches; });
}

/// Writes 1F1B for a rank with `ranks_after` ranks after it in the pipeline. `backward` is called once per microbatch.
template <class Backward>
void write_1f1b(RankWriter& writer, int ranks_after, int microbatches, Backward&& backward) {
  // Warm-up: forwards needed by later ranks before the first backward can return.
  for (int i = 0; i < std::min(microbatches, ranks_after); ++i) writer.forward();
  while (writer.backwards() < microbatches) {
    if (writer.forwards() < microbatches) writer.forward();
    backward();
  }
}

}  // namespace

std::string describe(const Action& action) {
  static constexpr std::array kNames{
      "forward",          "backward",         "input gradient",      "weight gradient",       "send of output",
      "receive of input", "send of gradient", "receive of gradient", "reduction of gradients"};
  const std::string name = kNames[static_cast<std::size_t>(action.kind)];
  return action.microbatch < 0 ? str(name, " in stage ", action.stage)
                               : str(name, " of microbatch ", action.microbatch, " in stage ", action.stage);
}

i64 Schedule::passes(int rank) const {
  return std::ranges::count_if(per_rank.at(static_cast<std::size_t>(rank)),
                               [](const Action& action) { return computes(action.kind); });
}

Schedule gpipe(int ranks, int microbatches) {
  Schedule schedule = empty_schedule(ScheduleKind::GPipe, ranks, microbatches);
  for (int rank = 0; rank < ranks; ++rank) {
    RankWriter writer(schedule, rank);
    for (int i = 0; i < microbatches; ++i) writer.forward();
    for (int i = 0; i < microbatches; ++i) writer.backward();
  }
  return schedule;
}

Schedule one_f_one_b(int ranks, int microbatches) {
  Schedule schedule = empty_schedule(ScheduleKind::OneFOneB, ranks, microbatches);
  for (int rank = 0; rank < ranks; ++rank) {
    RankWriter writer(schedule, rank);
    write_1f1b(writer, ranks - 1 - rank, microbatches, [&] { writer.backward(); });
  }
  return schedule;
}

Schedule interleaved_1f1b(int ranks, int microbatches, int chunks) {
  Schedule schedule = empty_schedule(ScheduleKind::Interleaved, ranks, microbatches, chunks);
  const int total = microbatches * chunks;
  for (int rank = 0; rank < ranks; ++rank) {
    RankWriter writer(schedule, rank);
    // `ranks` microbatches pass through chunk 0, then chunk 1, ...; then the next `ranks`. Backward mirrors this.
    const auto chunk_of = [&](int unit) { return unit % (ranks * chunks) / ranks; };
    const auto forward = [&](int unit) { writer.forward(chunk_of(unit)); };
    const auto backward = [&](int unit) { writer.backward(chunks - 1 - chunk_of(unit)); };
    const int warm_up = std::min(total, 2 * (ranks - 1 - rank) + (chunks - 1) * ranks);
    for (int k = 0; k < warm_up; ++k) forward(k);
    for (int k = warm_up; k < total; ++k) {
      forward(k);
      backward(k - warm_up);
    }
    for (int k = total - warm_up; k < total; ++k) backward(k);
  }
  return schedule;
}

Schedule zb_h1(int ranks, int microbatches) {
  Schedule schedule = empty_schedule(ScheduleKind::ZbH1, ranks, microbatches);
  for (int rank = 0; rank < ranks; ++rank) {
    RankWriter writer(schedule, rank);
    write_1f1b(writer, ranks - 1 - rank, microbatches, [&] {
      writer.backward_input();
      // 1F1B holds ranks - rank microbatches at this point; `rank` more may wait for their weight gradients.
      if (writer.backwards() > rank) writer.backward_weight();
    });
    while (writer.weights() < microbatches) writer.backward_weight();
  }
  return schedule;
}

Schedule zb_v(int ranks, int microbatches) {
  Schedule schedule = empty_schedule(ScheduleKind::ZbV, ranks, microbatches, 2);
  // Fewer microbatches than fill the V form a prefix of a longer schedule.
  const int full_count = std::max(microbatches, 2 * ranks);
  schedule.microbatches = full_count;
  for (int rank = 0; rank < ranks; ++rank) {
    RankWriter writer(schedule, rank);
    const int ranks_to_turn = ranks - rank;  // including this one
    // Fill: all forwards that fit until the first microbatch returns from the turn, ...
    for (int i = 0; i < 2 * ranks_to_turn - 1; ++i) writer.forward(0);
    // ... then alternate with returning microbatches, ...
    for (int i = 0; i < rank; ++i) {
      writer.forward(1);
      writer.forward(0);
    }
    // ... whose first backwards begin at the end of the V, on rank 0.
    for (int i = 0; i < ranks_to_turn; ++i) {
      writer.forward(1);
      writer.backward_input(1);
      writer.backward_weight(1);
    }
    // Steady state: all six units of work of one microbatch.
    while (writer.forwards(1) < full_count) {
      if (writer.forwards(0) < full_count) writer.forward(0);
      writer.backward_input(0);
      writer.backward_weight(0);
      writer.forward(1);
      writer.backward_input(1);
      writer.backward_weight(1);
    }
    // Drain: work that other ranks wait for comes first; weight gradients fill the gaps.
    for (int i = 0; i < rank; ++i) {
      writer.backward_input(0);
      writer.backward_input(1);
    }
    for (int i = 0; i < ranks_to_turn; ++i) {
      writer.backward_input(0);
      writer.backward_weight(0);
    }
    while (writer.weights(1) < full_count) writer.backward_weight(1);
    while (writer.weights(0) < full_count) writer.backward_weight(0);
  }
  shorten(schedule, microbatches);
  return schedule;
}

namespace {

/// Writes the actions of a rank in DualPipeV's eight steps.
class DualPipeVWriter {
 public:
  DualPipeVWriter(Schedule& schedule, int rank)
      : writer_(schedule, rank),
        rank_(rank),
        ranks_after_(schedule.ranks - rank - 1),
        microbatches_(schedule.microbatches),
        ranks_(schedule.ranks) {}

  void write() {
    for (int i = 0; i < 2 * ranks_after_; ++i) writer_.forward(0);
    for (int i = 0; i <= rank_; ++i) {
      writer_.forward(0);
      writer_.forward(1);
    }
    for (int i = 0; i < ranks_after_; ++i) {
      split_backward(1);
      weight();
      writer_.forward(1);
    }
    // Steady state: pairs of a forward and a backward of different microbatches.
    for (int i = 0; i < microbatches_ - 2 * ranks_ + rank_ + 1; ++i) {
      writer_.forward(0);
      writer_.backward(1);
      writer_.forward(1);
      writer_.backward(0);
    }
    for (int i = 0; i < ranks_after_; ++i) {
      writer_.backward(1);
      writer_.forward(1);
      writer_.backward(0);
    }
    drain();
  }

 private:
  void split_backward(int chunk) {
    writer_.backward_input(chunk);
    delayed_.push_back(chunk);
  }
  void weight() {
    writer_.backward_weight(delayed_.front());
    delayed_.pop_front();
  }
  /// In the second half, other ranks wait for input gradients; weight gradients fill the gaps after it.
  void drain() {
    const int count = rank_ + 1;
    bool splits = false;
    const auto backward = [&](int chunk) { splits ? split_backward(chunk) : writer_.backward(chunk); };
    for (int i = 0; i < count; ++i) {
      splits |= i == count / 2 && rank_ % 2 == 1;
      backward(1);
      splits |= i == count / 2 && rank_ % 2 == 0;
      backward(0);
    }
    for (int i = 0; i < ranks_after_; ++i) {
      weight();
      split_backward(0);
    }
    while (!delayed_.empty()) weight();
  }

  RankWriter writer_;
  int rank_, ranks_after_, microbatches_, ranks_;
  std::deque<int> delayed_;  // chunks of weight gradients that are not written yet
};

}  // namespace

Schedule dualpipe_v(int ranks, int microbatches) {
  Schedule schedule = empty_schedule(ScheduleKind::DualPipeV, ranks, microbatches, 2);
  // Fewer microbatches than fill the V form a prefix of a longer schedule.
  schedule.microbatches = std::max(microbatches, 2 * ranks);
  for (int rank = 0; rank < ranks; ++rank) DualPipeVWriter(schedule, rank).write();
  shorten(schedule, microbatches);
  return schedule;
}

Schedule forward_schedule(const Schedule& schedule) {
  Schedule forwards = schedule;
  forwards.forward_only = true;
  for (auto& actions : forwards.per_rank)
    std::erase_if(actions, [](const Action& action) { return action.kind != ActionKind::Forward; });
  return forwards;
}

bool is_pass_pair(const Schedule& schedule, int rank, std::size_t i) {
  const std::vector<Action>& actions = schedule.per_rank[rank];
  if (schedule.combines_passes.empty() || !schedule.combines_passes[rank] || i + 1 >= actions.size()) return false;
  const Action &a = actions[i], &b = actions[i + 1];
  const bool is_forward = a.kind == ActionKind::Forward;
  return a.microbatch != b.microbatch && is_forward != (b.kind == ActionKind::Forward) &&
         computes_input_grad(is_forward ? b.kind : a.kind);
}

namespace {

/// Moves forwards of a rank of 1F1B to the front, so that `additional` more precede the first backward, or all if there
/// are not that many. Returns false in the latter case.
bool extend_warm_up(std::vector<Action>& actions, std::ptrdiff_t additional) {
  const auto is_forward = [](const Action& action) { return action.kind == ActionKind::Forward; };
  const auto warm_up = std::ranges::find_if_not(actions, is_forward) - actions.begin();
  std::vector<Action> forwards, backwards;
  std::ranges::partition_copy(actions, std::back_inserter(forwards), std::back_inserter(backwards), is_forward);
  auto next = forwards.begin() + std::min(warm_up + additional, std::ssize(forwards));
  actions.assign(forwards.begin(), next);
  for (const Action& backward : backwards) {
    actions.push_back(backward);
    if (next != forwards.end()) actions.push_back(*next++);
  }
  return warm_up + additional <= std::ssize(forwards);
}

}  // namespace

Schedule combine_passes(const Schedule& schedule) {
  Schedule combined = schedule;
  for (int rank = 0; rank < schedule.ranks; ++rank) {
    std::vector<Action>& actions = combined.per_rank[rank];
    const bool is_fused = std::ranges::all_of(
        actions, [](const Action& a) { return a.kind == ActionKind::Forward || a.kind == ActionKind::Backward; });
    combined.combines_passes.push_back(
        is_fused ? extend_warm_up(actions, schedule.chunks_per_rank == 1 ? schedule.ranks - rank : 1)
                 : schedule.microbatches >= schedule.ranks);
  }
  return combined;
}

double combined_fraction(const Schedule& schedule) {
  i64 pairs = 0, forwards = 0;
  for (int rank = 0; rank < schedule.ranks; ++rank) {
    const std::vector<Action>& actions = schedule.per_rank[rank];
    forwards += std::ranges::count(actions, ActionKind::Forward, &Action::kind);
    for (std::size_t i = 0; i < actions.size(); ++i) {
      if (!is_pass_pair(schedule, rank, i)) continue;
      ++pairs;
      ++i;
    }
  }
  return forwards == 0 ? 0 : static_cast<double>(pairs) / static_cast<double>(forwards);
}

Schedule serialize_first_microbatches(const Schedule& schedule, int microbatches) {
  const auto sort_key = [](const Action& action) {
    const bool is_forward = action.kind == ActionKind::Forward;
    return std::tuple(action.microbatch, !is_forward, is_forward ? action.stage : -action.stage, action.kind);
  };
  if (microbatches == 0) return schedule;
  Schedule result = schedule;
  result.combines_passes.clear();
  for (auto& actions : result.per_rank) {
    const auto others = std::stable_partition(actions.begin(), actions.end(),
                                              [=](const Action& action) { return action.microbatch < microbatches; });
    std::sort(actions.begin(), others, [&](const Action& a, const Action& b) { return sort_key(a) < sort_key(b); });
  }
  return result;
}

namespace {

/// Returns the number of weight gradients by stage.
std::vector<int> count_weight_grads(const Schedule& schedule) {
  std::vector<int> counts(schedule.stages());
  for (const auto& actions : schedule.per_rank)
    for (const Action& action : actions) counts[action.stage] += computes_weight_grad(action.kind);
  return counts;
}

}  // namespace

Schedule lower(const Schedule& schedule) {
  Schedule lowered = schedule;
  std::vector<int> weight_grads_left = count_weight_grads(schedule);
  for (int rank = 0; rank < schedule.ranks; ++rank) {
    const std::vector<Action>& passes = schedule.per_rank[rank];
    std::vector<Action>& actions = lowered.per_rank[rank];
    actions.clear();
    const auto is_remote = [&](int stage) {
      return stage >= 0 && stage < schedule.stages() && schedule.rank_of(stage) != rank;
    };
    const auto add = [&](ActionKind kind, const Action& pass) {
      actions.push_back({kind, pass.stage, pass.microbatch});
    };
    const auto add_receive = [&](const Action& pass) {
      if (pass.kind == ActionKind::Forward && is_remote(pass.stage - 1)) add(ActionKind::RecvForward, pass);
      if (computes_input_grad(pass.kind) && is_remote(pass.stage + 1)) add(ActionKind::RecvBackward, pass);
    };
    const auto add_send = [&](const Action& pass) {
      if (pass.kind == ActionKind::Forward && is_remote(pass.stage + 1)) add(ActionKind::SendForward, pass);
      if (computes_input_grad(pass.kind) && is_remote(pass.stage - 1)) add(ActionKind::SendBackward, pass);
      if (computes_weight_grad(pass.kind) && --weight_grads_left[pass.stage] == 0)
        actions.push_back({ActionKind::ReduceGrad, pass.stage});
    };
    for (std::size_t i = 0; i < passes.size();) {
      const std::span together(passes.data() + i, is_pass_pair(schedule, rank, i) ? 2 : 1);
      std::ranges::for_each(together, add_receive);
      actions.insert(actions.end(), together.begin(), together.end());
      std::ranges::for_each(together, add_send);
      i += together.size();
    }
  }
  return lowered;
}

}  // namespace mcpp
