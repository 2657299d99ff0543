// What the machine has that a process runs on.
#pragma once
#include "base/types.h"

namespace mcpp {

/// Bytes of memory, whoever uses them.
i64 physical_memory();

}  // namespace mcpp
