// Check of optimizer.param_group against the parameters of the model.
#pragma once
#include <string>

#include "megatron_cpp/config/config.h"

namespace mcpp {

/// Throws BadInput if a table of optimizer.param_group is the first match of no parameter of the full model, or if none
/// of its parameters uses the Adam keys that it sets. model.vocab_size must be known.
void check_param_groups(const Config& config);

/// Returns a line per table with its patterns, its parameters and its settings; empty without tables.
std::string describe_param_groups(const Config& config);

}  // namespace mcpp
