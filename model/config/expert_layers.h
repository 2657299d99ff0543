// Which layers of a model have experts.
#pragma once
#include "model/config/moe.h"

namespace mcpp {

/// Of the layers first, first + 1, ... before end.
std::vector<i64> layers_with_experts(const MoeConfig& moe, i64 first, i64 end);

}  // namespace mcpp
