// Check of low-precision recipes against the linear layers of the model and the layout of the run.
#pragma once
#include <string>
#include <vector>

#include "megatron_cpp/config/config.h"

namespace mcpp {

/// Returns every reason why the recipes do not apply to the model on `world_size` ranks: tables of
/// training.low_precision without a linear layer, recipes that a linear layer does not support, and blocks that would
/// straddle ranks. The layout must be possible (check_layout()).
std::vector<std::string> low_precision_problems(const Config& config, int world_size);
/// Throws BadInput with all of low_precision_problems().
void check_low_precision(const Config& config, int world_size);

/// Returns the workspace in bytes of the largest low-precision GEMM of a rank on a GPU: codes and scales of both
/// operands, their Hadamard transforms, and decoded operands for GPUs that emulate the recipe. Memory estimates exclude
/// it. Returns 0 for CPUs.
double low_precision_workspace_bytes(const Config& config, int world_size);

/// Returns a line per table of training.low_precision with its linear layers and recipes; empty without tables.
std::string describe_low_precision(const Config& config);

}  // namespace mcpp
