// How many layers each stage of a pipeline may have.
#pragma once
#include <string>
#include <vector>

#include "model/config/config.h"

namespace mcpp {

/// Values of pipeline_model_parallel_layout that are worth a look, "" where all stages have as many layers: that, if it
/// can be; and, if it is another, the one whose busiest stage has least to compute, by operations, where the output
/// counts as the layers that it takes as long as. None where other stages than the first and the last would be empty.
std::vector<std::string> stage_layouts(const ModelConfig& model, i64 stages);

}  // namespace mcpp
