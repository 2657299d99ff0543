// Simulation of pipeline ranks that share too few cores. A rank that waits for a message leaves its core to others.
#pragma once
#include <span>

#include "parallel/pp/simulate.h"

namespace mcpp {

/// Returns the makespan of a lowered schedule (valid for simulate()) if all ranks together compute as fast as `at_once`
/// cores. It may be fractional, because one simulated rank may represent several ranks.
double oversubscribed_makespan(const Schedule& lowered, std::span<const ScheduleCosts> costs, double at_once);

}  // namespace mcpp
