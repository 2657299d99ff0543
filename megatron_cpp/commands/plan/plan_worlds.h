// Comparison of several numbers of ranks for megatron_cpp plan.
#pragma once
#include "megatron_cpp/commands/plan/plan_options.h"

namespace mcpp {

/// Logs the best layout for each of options.scale and the best of these. Throws BadInput, after the table, if no layout
/// fits or none is in time. The layout of `any` is ignored.
void compare_world_sizes(const PlanOptions& options, const PredictionInput& any, const SearchLimits& limits,
                         const Log& log);

/// Finds the smallest number of devices that trains in time. Throws BadInput if no number suffices.
void plan_for_deadline(const PlanOptions& options, const PredictionInput& any, const SearchLimits& limits,
                       const Log& log);

}  // namespace mcpp
