// Memory copies between ranks of a node. Zero bytes and to == from are allowed.
#pragma once
#include "base/types.h"

namespace mcpp {

/// Copies `bytes` bytes. Large copies use non-temporal stores: a regular store to an uncached line reads the line
/// first, and the copy would evict the entire cache. The C library uses such stores only above its estimate of a core's
/// cache share, which on virtual machines is often the entire cache.
void copy_bytes(void* to, const void* from, i64 bytes);

}  // namespace mcpp
