// Copies inside a machine, of nothing too, and of what is there already.
#pragma once
#include "base/types.h"

namespace mcpp {

/// Large copies go past the caches, which they would only sweep: a store into a line that is not there reads it first.
/// The C library does so beyond what it takes for a core's share of the caches, which on virtual machines is often all
/// that the processor has.
void copy_bytes(void* to, const void* from, i64 bytes);

}  // namespace mcpp
