// Enumeration of the layouts of a number of ranks that are worth considering.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "model/config/config.h"
#include "plan/layout_memory.h"
#include "plan/search.h"

namespace mcpp {

// Layer counts of pipeline stages.

/// Returns the values of pipeline_model_parallel_layout worth considering: "" (the same number of layers in every
/// stage) if possible, and the one that minimizes the operations of the busiest stage if it differs. The output counts
/// as the number of layers with the same operations. Empty if stages other than the first and the last would have no
/// layers.
std::vector<std::string> stage_layouts(const ModelConfig& model, i64 stages);

/// Calls f on every layout that the rules of parallel/layout_rules.h accept, in a fixed
/// order, with states and weights at `placement` and activations on the device.
void for_each_layout(const Hardware& hardware, const Workload& work, const SearchLimits& limits,
                     const std::function<void(const Layout&)>& f, const OffloadPlacement& placement = {});

/// Returns other lossy formats than the workload's that are worth considering: int8 communication over links beyond the
/// nearest tier, and gradient sums in bf16.
std::vector<CommFormats> lossy_comm_options(const Hardware& hardware, const Workload& work, const Layout& layout);

/// Returns true if for_each_layout() would visit any layout.
bool has_layouts(const Hardware& hardware, const Workload& work, const SearchLimits& limits);

/// Returns every reason why `limits` allow no layout at all, regardless of memory; empty if a layout may exist.
std::vector<std::string> limit_conflicts(const Hardware& hardware, const Workload& work, const SearchLimits& limits);

}  // namespace mcpp
