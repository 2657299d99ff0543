// Simulator that validates a lowered schedule and computes its duration and memory use.
#pragma once
#include <span>
#include <vector>

#include "parallel/pp/schedule.h"

namespace mcpp {

/// Durations of each kind of work for one stage, in any unit.
struct ScheduleCosts {
  double forward = 1;
  double backward_input = 1;
  double backward_weight = 1;
  /// Time of a message to or from the next stage, from the end of the sending action to the earliest start of the
  /// receiving action.
  double message = 0;
  double reduce_grad = 0;  ///< time of the reduction that is not overlapped
};

struct TimedAction {
  Action action;
  double begin, end;
};

struct Timeline {
  std::vector<std::vector<TimedAction>> per_rank;
  std::vector<double> busy;         ///< compute time of each rank
  std::vector<double> idle;         ///< waiting time of each rank between its first and last action
  std::vector<int> peak_in_flight;  ///< maximum number of stage inputs waiting for their weight gradient, by rank
  double makespan = 0;              ///< time from the first start to the last end
  /// Maximum over ranks of the fraction of time between the first and last action in which the rank waits. Ranks may
  /// start and end at different times, because a rank that is done can begin the next step.
  double bubble = 0;

  int max_in_flight() const;
};

/// Simulates a lowered schedule. Throws an Internal error that names rank, step and action at the first mistake:
///  - an action that does not exist or that its rank cannot execute;
///  - a missing input or gradient;
///  - a message received out of order (per pair of ranks and direction), never received, or sent before it is computed;
///  - an action that is missing or executed twice;
///  - weight gradients of a stage out of microbatch order, or reduced before they are complete;
///  - a deadlock.
Timeline simulate(const Schedule& lowered, const ScheduleCosts& costs = {});
/// Simulates with the costs of stages 0, 1, ...
Timeline simulate(const Schedule& lowered, std::span<const ScheduleCosts> costs);

// Simulation of pipeline ranks that share too few cores. A rank that waits for a message leaves its core to others.

/// Returns the makespan of a lowered schedule (valid for simulate()) if all ranks share `cores` cores. `cores` may be
/// fractional, because one simulated rank may represent several ranks.
double oversubscribed_makespan(const Schedule& lowered, std::span<const ScheduleCosts> costs, double cores);

}  // namespace mcpp
