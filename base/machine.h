// What the machine has that a process runs on.
#pragma once
#include "base/types.h"

namespace mcpp {

/// Bytes of memory, whoever uses them.
i64 physical_memory();

/// Lets this process open as many files at once as the system permits it: a checkpoint of many ranks has many.
void allow_many_open_files();

}  // namespace mcpp
