// Uninitialized memory with other content in each execution of a step.
#pragma once
#include <cstring>
#include <vector>

#include "tensor/device.h"

namespace mcpp::test {

/// Fills memory that the next allocations of a CPU device reuse, so that results that depend on uninitialized memory
/// differ from those with a different `value`.
inline void dirty_free_memory(Device& device, i64 value) {
  if (device.type() != DeviceType::Cpu) return;
  constexpr i64 kMaxBytes = i64{1} << 16;
  constexpr int kBlocks = 8;  // of each size
  device.trim();
  for (i64 bytes = padded_alloc_size(1); bytes <= kMaxBytes; bytes = padded_alloc_size(bytes + 1)) {
    std::vector<void*> blocks;
    for (int i = 0; i < kBlocks; ++i) {
      blocks.push_back(device.allocate(bytes, MemoryClass::Other));
      std::memset(blocks.back(), static_cast<int>(value % 250) + 1, static_cast<std::size_t>(bytes));
    }
    for (void* block : blocks) device.release(block, bytes, MemoryClass::Other);
  }
}

}  // namespace mcpp::test
