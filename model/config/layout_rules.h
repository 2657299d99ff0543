// Requirements of a model on its parallel layout.
#pragma once
#include "model/config/config.h"
#include "parallel/layout.h"

namespace mcpp {

/// Returns the sizes that must be divisible by the layout of this model. The caller fills in layout and batch sizes.
LayoutRules layout_rules(const ModelConfig& model);

}  // namespace mcpp
