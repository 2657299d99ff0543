// Minimal number of recomputed layers per stage.
#pragma once
#include <optional>

#include "plan/layout_memory.h"

namespace mcpp {

/// Takes a layout that recomputes all its layers and fits, and returns it with as few recomputed layers per stage as
/// still fit. Returns std::nullopt if none or all of them need to be recomputed. Never offloads anything.
std::optional<Layout> minimize_recompute(LayoutMemory& memory, Layout layout, const ModelConfig& model,
                                         double device_bytes);

}  // namespace mcpp
