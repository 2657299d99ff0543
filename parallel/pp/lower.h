// From what is computed to what a rank does: messages and gradient reductions added.
#pragma once
#include "parallel/pp/schedule.h"

namespace mcpp {

/// Adds a receive before each action whose input another rank computes, a send after each whose result another rank
/// needs, and one ReduceGrad after the last weight gradient of each stage. Stages on the same rank need no messages.
Schedule lower(const Schedule& schedule);

}  // namespace mcpp
