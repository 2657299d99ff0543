// Layer counts of pipeline stages.
#pragma once
#include <string>
#include <vector>

#include "model/config/config.h"

namespace mcpp {

/// Returns the values of pipeline_model_parallel_layout worth considering: "" (the same number of layers in every
/// stage) if possible, and the one that minimizes the operations of the busiest stage if it differs. The output counts
/// as the number of layers with the same operations. Empty if stages other than the first and the last would have no
/// layers.
std::vector<std::string> stage_layouts(const ModelConfig& model, i64 stages);

}  // namespace mcpp
