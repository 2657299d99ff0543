#include "parallel/pp/lower.h"

namespace mcpp {
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
    std::vector<Action>& actions = lowered.per_rank[rank];
    actions.clear();
    const auto is_remote = [&](int stage) {
      return stage >= 0 && stage < schedule.stages() && schedule.rank_of(stage) != rank;
    };
    for (const Action& action : schedule.per_rank[rank]) {
      const auto add = [&](ActionKind kind) { actions.push_back({kind, action.stage, action.microbatch}); };
      const bool forward = action.kind == ActionKind::Forward, backward = computes_input_grad(action.kind);
      const bool has_rank_before = is_remote(action.stage - 1), has_rank_after = is_remote(action.stage + 1);
      if (forward && has_rank_before) add(ActionKind::RecvForward);
      if (backward && has_rank_after) add(ActionKind::RecvBackward);
      actions.push_back(action);
      if (forward && has_rank_after) add(ActionKind::SendForward);
      if (backward && has_rank_before) add(ActionKind::SendBackward);
      if (computes_weight_grad(action.kind) && --weight_grads_left[action.stage] == 0)
        actions.push_back({ActionKind::ReduceGrad, action.stage});
    }
  }
  return lowered;
}

}  // namespace mcpp
