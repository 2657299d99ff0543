// What megatron_cpp plan says of several numbers of ranks.
#pragma once
#include "megatron_cpp/commands/plan/plan_options.h"

namespace mcpp {

/// The best layout of each of options.scale, and the best of these. BadInput, after the table, when nothing fits in any
/// or none is in time. `any`: with any layout.
void plan_worlds(const PlanOptions& options, const Job& any, const SearchLimits& limits, const Log& log);

/// The fewest devices that are in time. BadInput when no number of them is.
void plan_deadline(const PlanOptions& options, const Job& any, const SearchLimits& limits, const Log& log);

}  // namespace mcpp
