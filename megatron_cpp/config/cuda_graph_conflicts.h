// Check for settings that CUDA graphs do not support.
#pragma once
#include <string>
#include <vector>

#include "megatron_cpp/config/config.h"

namespace mcpp {

/// Appends an error for every key with a value that device.cuda_graph_impl does not support. Errors name the value, the
/// reason, and what to do.
void cuda_graph_conflicts(const Config& config, std::vector<std::string>& errors);

}  // namespace mcpp
