#include "tensor/memory_arena.h"

#include <mutex>
#include <thread>

#include "base/check.h"
#include "tensor/device_pool.h"

namespace mcpp {

MemoryArena::MemoryArena(Device& device) : device_(device) {}

MemoryArena::~MemoryArena() {
  Device::Pool& pool = *device_.pool_;
  const std::lock_guard lock(pool.mutex);
  std::erase_if(pool.arenas, [this](const auto& entry) { return entry.second == this; });
  for (const auto& [size, blocks] : free_blocks_) {
    FreeBlocks::mapped_type& pooled = pool.free_blocks[size];
    pooled.insert(pooled.end(), blocks.begin(), blocks.end());
  }
  device_.update_usage(MemoryClass::RecordedPasses, live_bytes_ - bytes_);
}

i64 MemoryArena::bytes() const {
  const std::lock_guard lock(device_.pool_->mutex);
  return bytes_;
}

i64 MemoryArena::live_bytes() const {
  const std::lock_guard lock(device_.pool_->mutex);
  return live_bytes_;
}

void* MemoryArena::allocate(i64 size, i64 bytes, MemoryClass c) {
  void* data = Device::Pool::pop(free_blocks_, size);
  if (data) {
    device_.update_usage(MemoryClass::RecordedPasses, -size);
    device_.update_usage(c, size);
  } else {
    MCPP_CHECK(growth_ == Growth::Allowed, "a recorded pass allocates ", bytes,
               " bytes more than the pass that sized its arena");
    data = device_.take(size, bytes, c);
    device_.pool_->arenas[data] = this;
    bytes_ += size;
  }
  live_bytes_ += size;
  return data;
}

void MemoryArena::release(void* data, i64 size, MemoryClass c) {
  free_blocks_[size].push_back(data);
  live_bytes_ -= size;
  device_.update_usage(c, -size);
  device_.update_usage(MemoryClass::RecordedPasses, size);
}

MemoryArena::Scope::Scope(MemoryArena& arena, Growth growth) : arena_(arena) {
  Device::Pool& pool = *arena_.device_.pool_;
  const std::lock_guard lock(pool.mutex);
  MCPP_CHECK(!pool.active, "the device already allocates from an arena");
  pool.active = &arena_;
  pool.thread = std::this_thread::get_id();
  arena_.growth_ = growth;
  arena_.has_foreign_release_ = false;
}

MemoryArena::Scope::~Scope() {
  Device::Pool& pool = *arena_.device_.pool_;
  const std::lock_guard lock(pool.mutex);
  pool.active = nullptr;
}

}  // namespace mcpp
