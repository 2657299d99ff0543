// Pool of a device's released blocks. Included only by the implementations of the device and of its arenas.
#pragma once
#include <map>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <vector>

#include "tensor/device.h"

namespace mcpp {

/// Free blocks by size.
using FreeBlocks = std::map<i64, std::vector<void*>>;

/// Pool of released blocks. A mutex protects it, because prefetching and saving threads also release tensors.
struct Device::Pool {
  std::mutex mutex;
  FreeBlocks free_blocks;
  std::unordered_map<const void*, MemoryArena*> arenas;  ///< arenas of blocks, by address of the block
  MemoryArena* active = nullptr;                         ///< arena that serves the allocations of `thread`
  std::thread::id thread;                                ///< thread of the active arena's scope

  MemoryArena* active_arena() const { return active && thread == std::this_thread::get_id() ? active : nullptr; }
  /// Removes and returns a block of `size` bytes; null if there is none.
  static void* pop(FreeBlocks& blocks, i64 size) {
    const auto it = blocks.find(size);
    if (it == blocks.end() || it->second.empty()) return nullptr;
    void* const data = it->second.back();
    it->second.pop_back();
    return data;
  }
};

}  // namespace mcpp
