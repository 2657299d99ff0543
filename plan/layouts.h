// Enumeration of candidate layouts for a number of ranks.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "model/config/config.h"
#include "plan/layout_memory.h"
#include "plan/search.h"

namespace mcpp {

// Layer counts of pipeline stages.

/// Returns the candidate values of pipeline_model_parallel_layout: "" (the same number of layers in every stage) if
/// possible, and the value that minimizes the operations of the busiest stage if it differs. The output layer counts as
/// the number of layers with the same operations. With multi-token prediction and untied embeddings, also the value
/// with the layers of multi-token prediction in the stage before the output. Empty if stages other than the first and
/// the last would have no layers.
std::vector<std::string> stage_layouts(const ModelConfig& model, i64 stages);

/// Returns true if runs on this hardware accept overlap_moe_expert_parallel_comm, which supports CPUs only.
bool supports_expert_overlap(const Hardware& hardware);
/// Returns true if the layout of a model with experts has exchanges of tokens that can overlap.
bool can_overlap_experts(const Layout& layout);

/// Calls f on every layout that the rules of parallel/layout_rules.h accept and that can be predicted for
/// limits.implementation, in a fixed order, with states and weights at `placement` and activations on the device.
void for_each_layout(const Hardware& hardware, const Workload& work, const SearchLimits& limits,
                     const std::function<void(const Layout&)>& f, const OffloadPlacement& placement = {});

/// Returns candidate lossy formats in addition to the formats of the workload: int8 communication over links beyond the
/// nearest tier, and gradient sums in bf16.
std::vector<CommFormats> lossy_comm_options(const Hardware& hardware, const Workload& work, const Layout& layout);

/// Returns true if for_each_layout() would visit any layout.
bool has_layouts(const Hardware& hardware, const Workload& work, const SearchLimits& limits);

/// Returns every reason why no layout satisfies `limits`, regardless of memory; empty if a layout may exist.
std::vector<std::string> limit_conflicts(const Hardware& hardware, const Workload& work, const SearchLimits& limits);

}  // namespace mcpp
