// What is said when memory runs out: what holds it, and which settings would need less of that.
#pragma once
#include <string>

#include "tensor/processor.h"

namespace mcpp {

/// Memory that could not be had.
struct MemoryRequest {
  i64 bytes = 0;
  MemoryClass memory_class = MemoryClass::Other;
};

/// The request, the table of what is in use, and advice on the class that would hold the most.
std::string out_of_memory_text(const MemoryRequest& request, const MemoryTable& in_use, const SystemMemory& system);

}  // namespace mcpp
