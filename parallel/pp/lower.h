// Lowering of schedules: adds messages and gradient reductions to the compute actions.
#pragma once
#include "parallel/pp/schedule.h"

namespace mcpp {

/// Adds a receive before each action whose input is computed on another rank, a send after each action whose result is
/// needed on another rank, and one ReduceGrad after the last weight gradient of each stage. Stages on the same rank
/// need no messages.
Schedule lower(const Schedule& schedule);

}  // namespace mcpp
