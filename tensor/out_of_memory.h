// Error message for memory exhaustion: what occupies the memory, and which settings reduce it.
#pragma once
#include <string>

#include "tensor/processor.h"

namespace mcpp {

/// Failed allocation request.
struct MemoryRequest {
  i64 bytes = 0;
  MemoryClass memory_class = MemoryClass::Other;
};

/// Formats the request, the memory table, and advice for the class that would occupy the most memory.
std::string out_of_memory_text(const MemoryRequest& request, const MemoryTable& in_use, const SystemMemory& system);

}  // namespace mcpp
