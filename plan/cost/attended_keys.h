// Number of keys that a query attends to if attention is restricted to documents.
#pragma once
#include "plan/cost/layout.h"

namespace mcpp {

/// Returns the average over samples and layers. Document lengths are taken to be exponentially distributed with the
/// workload's mean.
double mean_attended_keys(const Workload& work);

}  // namespace mcpp
