// What a model asks of a layout.
#pragma once
#include "model/config/config.h"
#include "parallel/layout.h"

namespace mcpp {

/// The sizes that a layout of this model has to divide; those of the layout and of its batches are left to fill in.
LayoutRules layout_rules(const ModelConfig& model);

}  // namespace mcpp
