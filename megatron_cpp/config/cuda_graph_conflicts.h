// Settings with which passes cannot be recorded in CUDA graphs.
#pragma once
#include <string>
#include <vector>

#include "megatron_cpp/config/config.h"

namespace mcpp {

/// Appends an error for every key with which device.cuda_graph_impl cannot be used: its value, the reason, and what to
/// do.
void cuda_graph_conflicts(const Config& config, std::vector<std::string>& errors);

}  // namespace mcpp
