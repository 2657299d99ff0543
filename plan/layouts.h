// Enumeration of the layouts of a number of ranks that are worth considering.
#pragma once
#include <functional>

#include "plan/offload_placement.h"
#include "plan/search.h"

namespace mcpp {

/// Calls f on every layout that the rules of parallel/layout.h and parallel/pp/schedule_kind.h accept, in a fixed
/// order, with states and weights at `placement` and activations on the device.
void for_each_layout(const Hardware& hardware, const Workload& work, const SearchLimits& limits,
                     const std::function<void(const Layout&)>& f, const OffloadPlacement& placement = {});

/// Returns other lossy formats than the workload's that are worth considering: int8 communication over links beyond the
/// nearest tier, and gradient sums in bf16.
std::vector<Rounding> lossy_comm_options(const Hardware& hardware, const Workload& work, const Layout& layout);

/// Returns true if for_each_layout() would visit any layout.
bool has_layouts(const Hardware& hardware, const Workload& work, const SearchLimits& limits);

/// Returns every reason why `limits` allow no layout at all, regardless of memory; empty if some layout may exist.
std::vector<std::string> limit_conflicts(const Hardware& hardware, const Workload& work, const SearchLimits& limits);

}  // namespace mcpp
