// How many layers of each stage are recomputed, where all are too many and none too few.
#pragma once
#include <optional>

#include "plan/layout_memory.h"

namespace mcpp {

/// A layout that recomputes all its layers, and fits, with as few of each stage's recomputed as fit. Nothing where one
/// may keep all of them, or must recompute all. What it keeps elsewhere is no question of this: nothing.
std::optional<Layout> with_fewest_recomputed(LayoutMemory& memory, Layout layout, const ModelConfig& model,
                                             double device_bytes);

}  // namespace mcpp
