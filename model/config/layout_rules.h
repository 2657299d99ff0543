// Requirements of a model on its parallel layout.
#pragma once
#include "model/config/config.h"
#include "parallel/layout.h"

namespace mcpp {

/// Returns the sizes that must be divisible by the layout of this model. The caller fills in layout and batch sizes.
LayoutRules layout_rules(const ModelConfig& model);

/// Returns true if `ranks` context-parallel ranks can exchange the heads of all layers of this model, after tensor
/// parallelism has sharded them.
bool can_exchange_heads(const ModelConfig& model, i64 ranks, i64 tensor_parallel);

}  // namespace mcpp
