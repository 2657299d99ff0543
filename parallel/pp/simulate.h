// Runs a lowered schedule on paper: finds every mistake, and tells how long it takes and what it keeps in memory.
#pragma once
#include <span>
#include <vector>

#include "parallel/pp/schedule.h"

namespace mcpp {

/// Time of each kind of work for one stage, in any unit.
struct ScheduleCosts {
  double forward = 1;
  double backward_input = 1;
  double backward_weight = 1;
  double message = 0;      ///< from the end of the sending action to the earliest start of the receiving one
  double reduce_grad = 0;  ///< where it is not hidden
};

struct TimedAction {
  Action action;
  double begin, end;
};

struct Timeline {
  std::vector<std::vector<TimedAction>> per_rank;
  std::vector<double> busy;         ///< time that a rank works
  std::vector<double> idle;         ///< time that it waits between its first and its last action
  std::vector<int> peak_in_flight;  ///< most stage inputs that wait for their weight gradient, by rank
  double makespan = 0;              ///< from the first start to the last end
  /// Largest share of a rank's time, from its first action to its last, that it waits. Ranks may start and end one
  /// after another, as the next step can begin where a rank is done.
  double bubble = 0;

  int max_in_flight() const;
};

/// Throws an Internal error that names rank, step and action at the first of: an action that its rank cannot do or that
/// does not exist; input or gradient that is not there; a message taken in another order than sent (per pair of ranks
/// and direction), never received, or sent before it is computed; anything done twice, a weight gradient above all;
/// weight gradients of a stage out of the order of microbatches; gradients reduced before they are complete; a
/// deadlock; anything left undone.
Timeline simulate(const Schedule& lowered, const ScheduleCosts& costs = {});
/// With the costs of stages 0, 1, ...; a message costs what its sender says.
Timeline simulate(const Schedule& lowered, std::span<const ScheduleCosts> costs);

}  // namespace mcpp
