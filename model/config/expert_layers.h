// Layers of a model that have experts.
#pragma once
#include "model/config/moe.h"

namespace mcpp {

/// Returns those of the layers [first, end) that have experts.
std::vector<i64> layers_with_experts(const MoeConfig& moe, i64 first, i64 end);

}  // namespace mcpp
