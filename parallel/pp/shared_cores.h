// Ranks that take turns on too few cores: which of them waits for a message leaves its core to the others.
#pragma once
#include <span>

#include "parallel/pp/simulate.h"

namespace mcpp {

/// How long a lowered schedule that simulate() accepts takes where `at_once` ranks together compute as fast as so many
/// cores do; it need not be whole, as a rank of the pipeline may stand for several.
double makespan_on_shared_cores(const Schedule& lowered, std::span<const ScheduleCosts> costs, double at_once);

}  // namespace mcpp
