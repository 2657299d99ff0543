// How many keys a query sees where attention stays inside documents.
#pragma once
#include "plan/cost/layout.h"

namespace mcpp {

/// On average over samples and layers. Documents are taken to have lengths as waiting times have them (exponential),
/// with the workload's mean: of many short ones and few long ones a query sees as many before it as of this mean.
double mean_seen_keys(const Workload& work);

}  // namespace mcpp
